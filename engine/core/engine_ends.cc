// SPDX-License-Identifier: Apache-2.0
// The engine's ends: who is silent, what has stalled, who left, what broke, and how everybody learns of it.
#include <algorithm>
#include <cstdio>

#include "agreement/control.h"
#include "collectives/kernels.h"
#include "core/engine.h"

namespace hvd {
namespace {

constexpr size_t kMostAsked = 6;  // missing ranks whose stacks are shown
// A rank that has never been linked may itself be waiting for one that is lost: its word is waited for.
constexpr std::chrono::milliseconds kBeforeFirstWord{500};

std::string LeftInTheMiddle(int rank, const std::string& host) {
  return "Horovod has been shut down: rank " + std::to_string(rank) + " (on host '" + host +
         "') called shutdown or exited in the middle of a collective";
}

}  // namespace

Status Engine::ShutDown(int rank) const {
  return Status::Failed("Horovod has been shut down: rank " + std::to_string(rank) + " (on host '" +
                            parts_.host_names[rank] + "') called shutdown or exited, and this operation needs it",
                        rank);
}

// ---- the watch

void Engine::Housekeep() {
  const Clock::time_point now = Clock::now();
  if (now < next_housekeeping_ || !aborted_.ok()) return;
  TakePulses(now);
  for (auto& [id, set] : sets_) {
    if (set->coordinator) InspectStalls(*set, now);
  }
  for (int rank : heartbeats_.Silent(now)) return Lose(rank, heartbeats_.SilenceText());
  next_housekeeping_ = heartbeats_.NextLook(now);
}

void Engine::TakePulses(Clock::time_point now) {
  if (parts_.arena) {
    reinterpret_cast<ArenaHead*>(parts_.arena->at(0))->pulse.fetch_add(1, std::memory_order_relaxed);
  }
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (!neighbour.arena) continue;
    const uint64_t pulse = neighbour.head()->pulse.load(std::memory_order_relaxed);
    auto [seen, first] = pulses_.emplace(neighbour.rank, pulse);
    if (first) heartbeats_.Expect(neighbour.rank, now);
    if (seen->second != pulse) heartbeats_.Heard(neighbour.rank, now);
    seen->second = pulse;
  }
  for (const Mailbox::Sign& sign : mailbox_.SignsOfLife()) {
    heartbeats_.Expect(sign.rank, sign.up ? now : now + kBeforeFirstWord);
    if (sign.up) {
      heartbeats_.Heard(sign.rank, now - sign.age);
      mailbox_.Send(sign.rank, control::EncodePing());
    } else if (!MeantToLeave(sign.rank) && parts_.connector->Deserted(sign.rank)) {
      OnGone(sign.rank, "its process ended before it had connected");
    }
  }
  for (int rank : departed_) heartbeats_.Forget(rank);
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (neighbour.life_line.farewell()) heartbeats_.Forget(neighbour.rank);
  }
}

void Engine::InspectStalls(ProcessSet& set, Clock::time_point now) {
  bool first = true;
  for (const StallInspector::Finding& finding : set.inspector->Inspect(set.coordinator->Pending(), now)) {
    std::string text = "'" + finding.name.substr(0, 200) + "' has waited " +
                       std::to_string(std::chrono::duration_cast<std::chrono::seconds>(finding.waited).count()) +
                       " s: rank" + (finding.missing.size() > 1 ? "s " : " ") + ListOfRanks(finding.missing) + " of " +
                       std::to_string(set.ranks().size()) + (finding.missing.size() > 1 ? " have" : " has") +
                       " not submitted it (last submitted: ";
    for (size_t i = 0; i < finding.missing.size() && i < kMostAsked; ++i) {
      const std::string& last = set.last_heard[set.IndexOf(finding.missing[i])];
      text += std::string(i ? "; " : "") + "rank " + std::to_string(finding.missing[i]) + ": " +
              (last.empty() ? "nothing yet" : "'" + last.substr(0, 200) + "'");
    }
    text += ")";
    if (finding.fatal) return Abort(-1, text + ". The job ends because HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set");
    text += ". If they are only slow, raise HOROVOD_STALL_CHECK_TIME_SECONDS (now " +
            std::to_string(parts_.settings.stall_warning_ms / 1000) +
            "); `hvd stacks PID` shows what a process is doing";
    // Where the missing ranks are is the same for all that waits: asked once for each look.
    std::vector<int32_t> asked;
    for (size_t i = 0; first && i < finding.missing.size() && i < kMostAsked; ++i) asked.push_back(finding.missing[i]);
    first = false;
    const std::string message = control::EncodeStall(set.tag(), finding.name, "WARNING: " + text, asked);
    OnStall(set, message, std::string_view(message).substr(control::kHeaderBytes));
  }
}

// The warning goes out at once; what the missing ranks are doing follows if they can tell. A rank that is frozen or
// dead does not answer, and nobody waits for it.
void Engine::OnStall(ProcessSet& set, std::string_view whole, std::string_view body) {
  SendDown(set, whole);
  std::string name, text;
  std::vector<int32_t> asked;
  if (!control::DecodeStall(&body, &name, &text, &asked)) return;
  ShowStall(set, name, text);
  if (std::find(asked.begin(), asked.end(), parts_.identity.rank) != asked.end()) AskForStack(set, name);
}

void Engine::OnStack(ProcessSet& set, std::string_view whole, std::string_view body) {
  std::string name, text;
  if (!set.leads()) {
    if (set.closed.ok()) mailbox_.Send(set.ranks()[set.tree().parent], whole);
  } else if (control::DecodeStack(&body, &name, &text)) {
    SendDown(set, control::EncodeStall(set.tag(), name, text, {}));
    ShowStall(set, name, text);
  }
}

// Every rank that waits for it says so, once.
void Engine::ShowStall(const ProcessSet& set, const std::string& name, const std::string& text) const {
  if (set.pending.Find(name)) std::fprintf(stderr, "[horovod] %s\n", text.c_str());
}

void Engine::AskForStack(const ProcessSet& set, const std::string& name) {
  if (stack_teller_.asked()) return;  // one answer is enough
  stack_asked_by_ = {set.id(), name};
  stack_teller_.Ask(Clock::now());
}

void Engine::ReportStack() {
  const std::optional<std::string> answer = stack_teller_.Answer(Clock::now());
  if (!answer) return;
  auto set = sets_.find(stack_asked_by_.first);
  if (set == sets_.end() || !aborted_.ok()) return;
  const std::string text = "rank " + std::to_string(parts_.identity.rank) + ", which is missing, is here: " + *answer;
  const std::string message = control::EncodeStack(set->second->tag(), stack_asked_by_.second, text);
  OnStack(*set->second, message, std::string_view(message).substr(control::kHeaderBytes));
}

// ---- ends

void Engine::FailAll(ProcessSet& set, const Status& status) {
  for (auto& operation : set.pending.TakeAll()) Finish(std::move(operation), status);
  for (auto& operation : set.postponed) Finish(std::move(operation), status);
  set.postponed.clear();
  if (set.delivery) EndDelivery(set, status);
  for (ProcessSet::Running& batch : set.running) {
    for (auto& operation : batch.operations) {
      if (operation) Finish(std::move(operation), status);
    }
  }
  if (!set.running.empty()) set.DropUnsent();  // it may lie in callers' tensors
  set.running.clear();
}

// All that has come, from everywhere if anybody's end is near. What a rank wrote before its end is read before that is
// judged: it may tell why, and who ended after giving a reason ended because of it. The farewell on the life line only
// tells that the end was meant; what makes us act on a departure is in the inbox, in the right order.
void Engine::Hear(bool eager, bool* moved) {
  const std::vector<Neighbour*> spoke = std::exchange(spoke_, {});
  for (Neighbour* neighbour : spoke) neighbour->life_line.Read();
  if (!spoke.empty()) mailbox_.LookEverywhere();
  *moved |= mailbox_.Receive([this](int from, std::string_view message) { OnMessage(from, message); }, eager);
  for (const Neighbour* neighbour : spoke) {
    const std::optional<LastWords>& words = neighbour->life_line.last_words();
    if (words) Abort(words->lost_rank, words->why);
  }
  for (Neighbour* neighbour : spoke) {
    if (neighbour->life_line.ended()) OnEnded(*neighbour);
  }
}

void Engine::OnEnded(const Neighbour& neighbour) {
  // Without memory its messages come over a link, whose end tells that all have been read.
  if (!neighbour.arena && neighbour.life_line.farewell()) return;
  OnBroken(neighbour.rank, "its process ended");
}

void Engine::CheckLinks() {
  const std::vector<std::pair<int, std::string>> links = mailbox_.TakeBroken();
  if (!links.empty() && aborted_.ok()) {
    OnEvents(parts_.poller->Collect());  // life lines tell who ended first
    bool moved = false;
    Hear(true, &moved);
  }
  for (const auto& [rank, why] : links) OnBroken(rank, why);
  if (!aborted_.ok()) return;
  std::pair<int, std::string> broken = messages_->Broken();
  for (auto& [id, set] : sets_) {
    if (broken.first < 0) broken = set->Broken();
    if (broken.first >= 0 || !set->busy()) continue;
    for (const auto& [rank, why] : unexplained_) {
      if (set->IndexOf(rank) >= 0) broken = {rank, why};
    }
  }
  if (broken.first < 0) {
    broken_since_ = {};
    return;
  }
  // Whoever holds the other end's control link knows more; wait for its word before we give ours.
  if (broken_since_ == Clock::time_point()) broken_since_ = Clock::now();
  if (Clock::now() - broken_since_ < kGrace) return;
  LoseContact(broken.first, "the connection to it broke (" + broken.second + ")");
}

// No more will come from this rank.
void Engine::OnBroken(int rank, const std::string& why) {
  OnGone(rank, why);
  if (departed_.count(rank) || !aborted_.ok()) return;
  // It meant to leave, but its parting words were lost with the link, or found our inbox full. They may have been
  // that it gave up what we still wait for.
  unexplained_[rank] = why;
  if (heartbeats_.Absence(Clock::now()) > WatchSpan::zero()) return LoseContact(rank, why);
  OnDeparture(rank);
}

bool Engine::MeantToLeave(int rank) const {
  const Neighbour* neighbour = parts_.neighbours->Find(rank);
  return departed_.count(rank) || (neighbour && neighbour->life_line.farewell());
}

void Engine::OnGone(int rank, const std::string& why) {
  if (!MeantToLeave(rank)) LoseContact(rank, why);
}

// Unless it is us who were away: then the others have given us up and left, and could not tell us so.
void Engine::LoseContact(int rank, const std::string& why) {
  const WatchSpan absence = heartbeats_.Absence(Clock::now());
  if (absence > WatchSpan::zero()) return Lose(parts_.identity.rank, Heartbeats::AbsenceText(absence));
  Lose(rank, why);
}

void Engine::OnDeparture(int rank) {
  if (!departed_.insert(rank).second) return;
  messages_->Fail(rank, ShutDown(rank));
  for (auto& [id, set] : sets_) {
    const int member = set->IndexOf(rank);
    if (member < 0) continue;
    if (set->leads()) {
      set->coordinator->OnDeparture(member);
    } else if (member == set->tree().parent) {
      CloseSet(*set, rank);
    } else {
      const auto& children = set->tree().children;
      if (std::find(children.begin(), children.end(), member) == children.end()) continue;
      mailbox_.Send(set->ranks()[set->tree().parent], control::EncodeGone(set->tag(), rank));
    }
  }
}

void Engine::OnGoneMember(ProcessSet& set, std::string_view whole, std::string_view body) {
  int32_t rank = -1;
  uint64_t applied = control::kNotTold;
  if (!control::DecodeGone(&body, &rank, &applied)) return Abort(-1, "a malformed farewell arrived");
  if (set.leads()) {
    const int member = set.IndexOf(rank);
    if (member <= 0) return;
    // It left while the word to begin was on its way to it: what we have begun will never end.
    if (applied < set.last_batch) return Abort(rank, LeftInTheMiddle(rank, parts_.host_names[rank]));
    set.coordinator->OnDeparture(member);
  } else if (rank == set.ranks()[0] || rank == set.ranks()[set.tree().parent]) {
    CloseSet(set, rank);
  } else {
    mailbox_.Send(set.ranks()[set.tree().parent], whole);
  }
}

// The way to the leader is gone. What is running was agreed and can still finish; nothing else can.
void Engine::CloseSet(ProcessSet& set, int rank) {
  if (!set.closed.ok()) return;
  set.closed = ShutDown(rank);
  for (auto& operation : set.pending.TakeAll()) {
    if (operation->round != kNoRound && set.express->Settled(operation->slot, operation->round)) {
      set.pending.Add(std::move(operation));
    } else {
      Finish(std::move(operation), set.closed);
    }
  }
  for (auto& operation : set.postponed) Finish(std::move(operation), set.closed);
  set.postponed.clear();
  SendDown(set, control::EncodeGone(set.tag(), rank));
}

void Engine::Leave() {
  const bool busy = std::any_of(sets_.begin(), sets_.end(), [](const auto& item) { return item.second->busy(); });
  if (busy && aborted_.ok()) {
    Abort(parts_.identity.rank, LeftInTheMiddle(parts_.identity.rank, parts_.identity.host));
  } else if (aborted_.ok()) {
    for (const auto& [id, set] : sets_) {
      if (set->tree().parent < 0) continue;
      const std::string gone = control::EncodeGone(set->tag(), parts_.identity.rank, set->applied);
      mailbox_.Send(set->ranks()[set->tree().parent], gone);
    }
    const std::string bye = control::EncodeBye(FinishedRounds());
    for (int rank : mailbox_.LinkedRanks()) mailbox_.Send(rank, bye);
  }
  mailbox_.RingUnread();
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayFarewell();
  const Status status = Status::Failed("Horovod has been shut down: this rank called shutdown");
  parts_.submissions->Close(status);
  Drain();
  for (auto& [id, set] : sets_) FailAll(*set, aborted_.ok() ? status : aborted_);
  messages_->Fail(-1, aborted_.ok() ? status : aborted_);
  if (aborted_.ok()) aborted_ = status;
}

void Engine::Lose(int rank, const std::string& why) { Abort(rank, NameLoss(rank, parts_.host_names[rank], why)); }

void Engine::Abort(int lost_rank, const std::string& text) {
  if (!aborted_.ok()) return;
  aborted_ = Status::Failed(text, lost_rank);
  parts_.submissions->Close(aborted_);
  // The lost one too: if it was only frozen, it finds out when it thaws. Its inbox may be full; its life line
  // never.
  for (int rank : mailbox_.LinkedRanks()) mailbox_.Send(rank, control::EncodeAbort(lost_rank, text));
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayLastWords({lost_rank, text});
  mailbox_.RingUnread();
  mailbox_.DropUnsent(lost_rank);
  for (auto& [id, set] : sets_) FailAll(*set, aborted_);
  messages_->Fail(-1, aborted_);
  Drain();
}

bool Engine::AllSent() const {
  const bool idle = std::all_of(sets_.begin(), sets_.end(), [](const auto& item) { return item.second->AllSent(); });
  return idle && messages_->AllSent() && mailbox_.AllSent();
}

std::string Engine::Describe() const {
  int by_memory = 0, by_socket = 0;
  for (int rank = 0; rank < parts_.identity.size; ++rank) {
    if (rank == parts_.identity.rank) continue;
    const Neighbour* neighbour = parts_.neighbours->Find(rank);
    ++(neighbour && neighbour->arena ? by_memory : by_socket);
  }
  const Tuning tuning = tuned_.Load();
  const char* autotune = !parts_.settings.autotune ? "off" : tuning.final ? "done" : "running";
  return std::string("{\"kernels\": \"") + KernelFlavour() + "\", \"autotune\": \"" + autotune +
         "\", \"fusion_threshold\": " + std::to_string(tuning.fusion_threshold) +
         ", \"cycle_time_us\": " + std::to_string(tuning.cycle_time_us) +
         ", \"chunk_bytes\": " + std::to_string(tuning.chunk_bytes) +
         ", \"peers_by_shared_memory\": " + std::to_string(by_memory) +
         ", \"peers_by_socket\": " + std::to_string(by_socket) +
         ", \"direct_batches\": " + std::to_string(direct_batches_.load()) +
         ", \"express_runs\": " + std::to_string(express_runs_.load()) +
         ", \"single_copy_batches\": " + std::to_string(single_copy_batches_.load()) +
         ", \"process_sets\": " + std::to_string(sets_.size() + foreign_.size()) +
         ", \"refused_connections\": " + std::to_string(parts_.connector->refused()) + "}";
}

void Engine::CloseDescriptors() {
  mailbox_.CloseDescriptors();
  messages_->CloseDescriptors();
  for (auto& [id, set] : sets_) set->CloseDescriptors();
}

}  // namespace hvd
