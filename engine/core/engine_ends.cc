// SPDX-License-Identifier: Apache-2.0
// How a world ends, and what can be wrong before: silent ranks, stalled tensors, ranks that leave, broken connections,
// and how all ranks are told.
#include <algorithm>

#include "agreement/control.h"
#include "agreement/spoken.h"
#include "collectives/kernels.h"
#include "core/engine.h"

namespace hvd {
namespace {

constexpr size_t kMostAsked = 6;  // missing ranks whose stacks are requested
// Extra time for the first message of a rank that has never been connected, which may itself be waiting for a lost
// rank.
constexpr std::chrono::milliseconds kBeforeFirstWord{500};
constexpr std::chrono::milliseconds kShortestLook{20};
constexpr std::chrono::seconds kBeforeNcclIsBlamed{2};
constexpr std::chrono::seconds kAfterDeparture{5};

}  // namespace

// ---- periodic checks

void Engine::Housekeep() {
  const Clock::time_point now = Clock::now();
  if (now < next_housekeeping_ || !departures_.over().ok()) return;
  AnswerCalls();
  TakePulses(now);
  const std::chrono::milliseconds limit(parts_.settings.peer_timeout_ms);
  for (auto& [id, membership] : sets_) {
    if (membership->leader) InspectStalls(*membership, now);
    membership->set.LookForAnswers(now, limit);
  }
  messages_->LookForAnswers(now, limit);
  if (looks_for_deadlocks()) LookAtBlocks(now);
  WatchNccl(now);
  WatchLaunches(now);
  Act(departures_.Look(now));
  next_housekeeping_ = departures_.NextLook(now);
  if (looks_for_deadlocks()) {
    const uint64_t share = AnybodyBlocked() ? 8 : 4;
    const auto soon = std::max(kShortestLook, std::chrono::milliseconds(parts_.settings.deadlock_ms / share));
    next_housekeeping_ = std::min(next_housekeeping_, now + soon);
  }
}

// End the world if NCCL reports an error for some time. If a rank was lost, the engine finds out before this time is
// over. If a member has left, NCCL's error may only mean that its connections are closed: nothing new runs on that
// communicator, and WatchLaunches ends work that still needs the member.
void Engine::WatchNccl(Clock::time_point now) {
  std::string trouble;
  for (auto& [id, membership] : sets_) {
    if (!membership->set.nccl() || !trouble.empty()) continue;
    if (!departures_.LeavingAmong(membership->set.ranks())) trouble = membership->set.nccl()->Trouble();
  }
  if (trouble.empty()) {
    nccl_troubled_since_ = Clock::time_point();
    return;
  }
  if (nccl_troubled_since_ == Clock::time_point()) nccl_troubled_since_ = now;
  if (now - nccl_troubled_since_ >= kBeforeNcclIsBlamed) AbortHere("NCCL reported an error there: " + trouble);
}

// End the world if launched work on a GPU takes too long. Agreed operations were submitted by all members; only for
// those without negotiation it is unknown. A rank that leaves waits for its GPU first, so work that it contributed to
// finishes soon.
void Engine::WatchLaunches(Clock::time_point now) {
  const auto& [gone, since] = first_to_leave_;
  if (gone >= 0 && now - since >= kAfterDeparture && !parts_.devices->watch().Overdue(now, kAfterDeparture).empty()) {
    return Abort(gone, departures_.ShutDown(gone).text);
  }
  const std::chrono::milliseconds limit(parts_.settings.stall_shutdown_ms);
  if (limit.count() == 0) return;
  const std::string name = parts_.devices->watch().Overdue(now, limit);
  if (name.empty()) return;
  Abort(-1, SpokenName(name) + " was launched " +
                std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) +
                " s ago, and the GPU is not done with it: other ranks have not called it, or with tensors of another "
                "size, or in another order. TORCH_DISTRIBUTED_DEBUG=DETAIL lets ranks agree on each call, and tells. "
                "The time limit is the group's, or HOROVOD_STALL_SHUTDOWN_TIME_SECONDS");
}

std::vector<std::shared_ptr<Communicator>> Engine::Communicators() const {
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& [id, membership] : sets_) {
    const NcclMeeting* const nccl = membership->set.nccl();
    if (nccl && nccl->communicator()) all.push_back(nccl->communicator());
  }
  return all;
}

void Engine::TakePulses(Clock::time_point now) {
  if (parts_.arena) {
    reinterpret_cast<ArenaHead*>(parts_.arena->at(0))->pulse.fetch_add(1, std::memory_order_relaxed);
  }
  for (const Neighbour& neighbour : parts_.neighbours->all()) {
    if (!neighbour.arena) continue;
    const uint64_t pulse = neighbour.head()->pulse.load(std::memory_order_relaxed);
    auto [seen, first] = pulses_.emplace(neighbour.rank, pulse);
    if (first) departures_.Expect(neighbour.rank, now);
    if (seen->second != pulse) departures_.Heard(neighbour.rank, now);
    seen->second = pulse;
  }
  for (const Mailbox::Sign& sign : mailbox_.SignsOfLife()) {
    departures_.Expect(sign.rank, sign.up ? now : now + kBeforeFirstWord);
    if (sign.up) {
      departures_.Heard(sign.rank, now - sign.age);
      mailbox_.Send(sign.rank, control::EncodePing());
      ++counters_.pings;
    } else if (!departures_.meant_to_leave(sign.rank) && parts_.connector->Deserted(sign.rank)) {
      Act(departures_.OnDeserted(sign.rank, Clock::now()));
    }
  }
}

void Engine::InspectStalls(Membership& membership, Clock::time_point now) {
  const ProcessSet& set = membership.set;
  bool first = true;
  for (const StallInspector::Finding& finding : membership.leader->FindStalls(now)) {
    std::string text = SpokenName(finding.name) + " has waited " +
                       std::to_string(std::chrono::duration_cast<std::chrono::seconds>(finding.waited).count()) +
                       " s: rank" + (finding.missing.size() > 1 ? "s " : " ") + ListOfRanks(finding.missing) + " of " +
                       std::to_string(set.ranks().size()) + (finding.missing.size() > 1 ? " have" : " has") +
                       " not submitted it (last submitted: ";
    for (size_t i = 0; i < finding.missing.size() && i < kMostAsked; ++i) {
      const std::string& last = membership.leader->last_heard(set.IndexOf(finding.missing[i]));
      text += std::string(i ? "; " : "") + "rank " + std::to_string(finding.missing[i]) + ": " +
              (last.empty() ? "nothing yet" : SpokenName(last));
    }
    text += ")";
    if (finding.fatal) return Abort(-1, text + ". The job ends because HOROVOD_STALL_SHUTDOWN_TIME_SECONDS is set");
    text += ". If they are only slow, raise HOROVOD_STALL_CHECK_TIME_SECONDS (now " +
            std::to_string(parts_.settings.stall_warning_ms / 1000) +
            "); `hvd stacks PID` shows what a process is doing";
    // The stack of a missing rank is the same for all tensors that wait for it, so request it once per check.
    std::vector<int32_t> asked;
    for (size_t i = 0; first && i < finding.missing.size() && i < kMostAsked; ++i) asked.push_back(finding.missing[i]);
    first = false;
    const std::string message = control::EncodeStall(set.tag(), finding.name, "WARNING: " + text, asked);
    OnStall(membership, message, std::string_view(message).substr(control::kHeaderBytes));
  }
}

// Forward and show a stall warning. The warning is sent at once; the stacks of the missing ranks follow if these ranks
// can report them. A rank that is frozen or dead does not answer, and no rank waits for its answer.
void Engine::OnStall(const Membership& membership, std::string_view whole, std::string_view body) {
  const ProcessSet& set = membership.set;
  SendDown(set, whole);
  std::string name, text;
  std::vector<int32_t> asked;
  if (!control::DecodeStall(&body, &name, &text, &asked)) return;
  ShowStall(membership.state, name, text);
  if (std::find(asked.begin(), asked.end(), parts_.identity.rank) != asked.end()) AskForStack(set, name);
}

void Engine::OnStack(const Membership& membership, std::string_view whole, std::string_view body) {
  const ProcessSet& set = membership.set;
  std::string name, text;
  if (!set.leads()) {
    if (membership.state.closed().ok()) mailbox_.Send(set.ranks()[set.tree().parent], whole);
  } else if (control::DecodeStack(&body, &name, &text)) {
    SendDown(set, control::EncodeStall(set.tag(), name, text, {}));
    ShowStall(membership.state, name, text);
  }
}

// Log the text if this rank waits for the tensor, so that each waiting rank logs it once.
void Engine::ShowStall(const MemberState& state, const std::string& name, const std::string& text) const {
  if (state.pending().Find(name)) parts_.log.Relay(text);
}

void Engine::AskForStack(const ProcessSet& set, const std::string& name) {
  if (stack_teller_.asked()) return;  // one request at a time is enough
  stack_asked_by_ = {set.id(), name};
  stack_teller_.Ask(Clock::now());
}

void Engine::ReportStack() {
  const std::optional<std::string> answer = stack_teller_.Answer(Clock::now());
  if (!answer) return;
  auto set = sets_.find(stack_asked_by_.first);
  if (set == sets_.end() || !departures_.over().ok()) return;
  const std::string text = "rank " + std::to_string(parts_.identity.rank) + ", which is missing, is here: " + *answer;
  const std::string message = control::EncodeStack(set->second->set.tag(), stack_asked_by_.second, text);
  OnStack(*set->second, message, std::string_view(message).substr(control::kHeaderBytes));
}

// ---- departures and the end of the world

void Engine::FailAll(Membership& membership, const Status& status) {
  for (auto& operation : membership.state.pending().TakeAll()) Finish(std::move(operation), status);
  membership.express.Fail(status);
  membership.applier.Fail(status);
  membership.prompt.Fail(status);
}

// Read all messages that have arrived; from all peers if a liveness socket had data. Messages that a rank wrote before
// it ended are read before its end is judged, because they may contain the reason. A rank that ended after it sent an
// abort reason ended because of that reason. The leave notice on the liveness socket only shows that the end was
// intended; the message that makes us act on a departure arrives in the inbox, in order with the others.
void Engine::Hear(bool eager, bool* moved) {
  const std::vector<Neighbour*> spoke = std::exchange(spoke_, {});
  for (Neighbour* neighbour : spoke) {
    neighbour->life_line.Read();
    if (neighbour->life_line.farewell()) departures_.OnFarewell(neighbour->rank);
  }
  if (!spoke.empty()) mailbox_.LookEverywhere();
  *moved |= mailbox_.Receive([this](int from, std::string_view message) { OnMessage(from, message); }, eager);
  for (const Neighbour* neighbour : spoke) {
    const std::optional<LastWords>& words = neighbour->life_line.last_words();
    if (words) Abort(words->lost_rank, words->why);
  }
  for (const Neighbour* neighbour : spoke) {
    if (!neighbour->life_line.ended()) continue;
    Act(departures_.OnEnded(neighbour->rank, neighbour->arena != nullptr, Clock::now()));
  }
}

void Engine::CheckLinks() {
  const std::vector<std::pair<int, std::string>> links = mailbox_.TakeBroken();
  if (!links.empty() && departures_.over().ok()) {
    OnEvents(parts_.poller->Collect());  // the liveness sockets show which rank ended first
    bool moved = false;
    Hear(true, &moved);
  }
  for (const auto& [rank, why] : links) Act(departures_.OnBroken(rank, why, Clock::now()));
  if (!departures_.over().ok()) return;
  std::pair<int, std::string> broken = messages_->Broken();
  for (auto& [id, membership] : sets_) {
    if (broken.first < 0) broken = membership->set.Broken();
    const bool needs_all = membership->busy() || membership->express.under_way();
    if (broken.first < 0 && needs_all) broken = departures_.UnexplainedAmong(membership->set.ranks());
  }
  if (broken.first < 0) return departures_.OnNothingBroken();
  Act(departures_.OnNeeded(broken.first, broken.second, Clock::now()));
}

void Engine::Act(const Departures::Verdict& verdict) {
  if (verdict.what == Departures::Verdict::What::kPart) Part(verdict.rank);
  if (verdict.what == Departures::Verdict::What::kAbort) Abort(verdict.rank, verdict.text);
}

void Engine::Part(int rank) {
  if (first_to_leave_.first < 0) first_to_leave_ = {rank, Clock::now()};
  deadlocks_.Forget(rank);
  messages_->Fail(rank, departures_.ShutDown(rank));
  for (auto& [id, membership] : sets_) PartFrom(*membership, rank);
}

void Engine::PartFrom(Membership& membership, int rank) {
  ProcessSet& set = membership.set;
  const int member = set.IndexOf(rank);
  if (member < 0) return;
  switch (Departures::WhenDeparted(set.tree(), member)) {
    case Departures::InSet::kCount:
      return membership.leader->coordinator().OnDeparture(member);
    case Departures::InSet::kClose:
      return CloseSet(membership, rank);
    case Departures::InSet::kPassOn:
      return mailbox_.Send(set.ranks()[set.tree().parent], control::EncodeGone(set.tag(), rank));
    case Departures::InSet::kFarewell:
    case Departures::InSet::kNothing:
      return;
  }
}

void Engine::OnGoneMember(Membership& membership, int from, std::string_view whole, std::string_view body) {
  ProcessSet& set = membership.set;
  int32_t rank = -1;
  uint64_t applied = control::kNotTold;
  if (!control::DecodeGone(&body, &rank, &applied)) return Abort(-1, "a malformed farewell arrived");
  const int member = set.IndexOf(rank);
  switch (Departures::WhenTold(set.tree(), member, set.IndexOf(from))) {
    case Departures::InSet::kCount: {
      const Departures::Verdict verdict = departures_.OnMemberGone(rank, applied, membership.leader->last_batch());
      if (verdict.what == Departures::Verdict::What::kAbort) return Act(verdict);
      TellOfDeparture(set, rank);
      return membership.leader->coordinator().OnDeparture(member);
    }
    case Departures::InSet::kFarewell:
      return departures_.OnFarewell(rank);
    case Departures::InSet::kClose:
      return CloseSet(membership, rank);
    case Departures::InSet::kPassOn:
      return mailbox_.Send(set.ranks()[set.tree().parent], whole);
    case Departures::InSet::kNothing:
      return;
  }
}

// Report to all members that a rank has left. In a set where every member may send to every other, some pairs have
// never been connected. A member would try to connect to the rank that has left and take it for lost.
void Engine::TellOfDeparture(const ProcessSet& set, int rank) {
  if (!set.close_knit() || set.all_in_memory()) return;
  for (int other : set.ranks()) {
    if (other == rank || other == parts_.identity.rank || departures_.departed(other)) continue;
    mailbox_.Send(other, control::EncodeGone(set.tag(), rank));
  }
}

// Stop negotiation in a set because the connection to the leader is gone. Running batches were agreed and can still
// finish; nothing else can.
void Engine::CloseSet(Membership& membership, int rank) {
  ProcessSet& set = membership.set;
  MemberState& state = membership.state;
  if (!state.closed().ok()) return;
  // Report the rank that left first as the reason, because the leader may have left only because of that.
  const int first = set.IndexOf(first_to_leave_.first) >= 0 ? first_to_leave_.first : rank;
  state.Close(departures_.ShutDown(first));
  for (auto& operation : state.pending().TakeAll()) {
    if (membership.express.Settled(*operation)) {
      state.pending().Add(std::move(operation));
    } else {
      const Status why = departures_.ShutDown(first, SpokenCall(operation->request));
      Finish(std::move(operation), why);
    }
  }
  for (auto& operation : membership.express.TakePostponed()) Finish(std::move(operation), state.closed());
  SendDown(set, control::EncodeGone(set.tag(), rank));
  if (set.id() == kGlobalSet) launches_.Close(state.closed().text);
}

// Leave the world normally. With `at_once`, device work that is unfinished now is abandoned, on this rank and on ranks
// that need this rank for it.
void Engine::Leave(bool at_once) {
  const bool unfinished = at_once && !parts_.devices->AwaitIdle(Clock::now());
  const bool busy = unfinished || std::any_of(sets_.begin(), sets_.end(), [](const auto& item) {
                      return item.second->busy() || item.second->express.passes_on();
                    });
  left_whole_ = departures_.over().ok() && !busy;
  const Departures::Verdict verdict = departures_.Leave(busy);
  if (verdict.what == Departures::Verdict::What::kSayBye) SayBye();
  Act(verdict);
  mailbox_.RingUnread();
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayFarewell();
  const Status left = Status::Failed("Horovod has been shut down: this rank called shutdown");
  parts_.submissions->Close(left);
  if (parts_.foreign) parts_.foreign->Close();
  departures_.End(left);
  Drain();  // these operations fail: the others know that this rank submits nothing more
  for (auto& [id, membership] : sets_) FailAll(*membership, departures_.over());
  messages_->Fail(-1, departures_.over());
}

void Engine::SayBye() {
  AnswerCalls();
  std::vector<control::Finished> finished;
  for (const auto& [id, membership] : sets_) {
    const ProcessSet& set = membership->set;
    membership->express.AddFinished(&finished);
    if (set.leads()) continue;
    const std::string gone = control::EncodeGone(set.tag(), parts_.identity.rank, membership->state.applied());
    mailbox_.Send(set.ranks()[set.tree().parent], gone);
  }
  bye_ = control::EncodeBye(finished);
  for (int rank : mailbox_.LinkedRanks()) {
    departures_.meant_to_leave(rank) ? mailbox_.DropUnsent(rank) : mailbox_.Send(rank, bye_);
  }
}

void Engine::OnBye(int from, std::string_view body) {
  std::vector<control::Finished> finished;
  if (!control::DecodeBye(&body, &finished)) return Lose(from, "its farewell was malformed");
  for (const control::Finished& one : finished) {
    auto found = sets_.find(one.set);
    if (found == sets_.end()) continue;
    const ProcessSet& set = found->second->set;
    if (set.epoch() == one.epoch && set.ranks()[0] == from) found->second->express.Settle(one.slot, one.round);
  }
  Act(departures_.OnBye(from));
}

void Engine::Lose(int rank, const std::string& why) { Act(departures_.Lose(rank, why)); }

void Engine::Abort(int lost_rank, const std::string& text) {
  const Status why = Status::Failed(text, lost_rank);
  if (!departures_.End(why)) return;
  parts_.submissions->Close(why);
  if (parts_.foreign) parts_.foreign->Close();
  // Send the message to the lost rank too: if it was only frozen, it learns later why it was dropped. Its inbox may be
  // full, but its liveness socket always takes the message.
  for (int rank : mailbox_.LinkedRanks()) mailbox_.Send(rank, control::EncodeAbort(lost_rank, text));
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayLastWords({lost_rank, text});
  mailbox_.RingUnread();
  mailbox_.DropUnsent(lost_rank);
  for (auto& [id, membership] : sets_) {
    FailAll(*membership, why);
    membership->set.LetGoOfDevice();
  }
  if (auto all = Communicators(); !all.empty()) {
    parts_.devices->launcher().PutFirst([all = std::move(all)] { Communicator::AbortAll(all); });
  }
  messages_->Fail(-1, why);
  Drain();
  parts_.log.Info([&] { return "this world has ended: " + text; });
}

bool Engine::AllSent() const {
  const bool idle =
      std::all_of(sets_.begin(), sets_.end(), [](const auto& item) { return item.second->set.AllSent(); });
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
  const uint64_t finished = parts_.submissions->finished();  // read first, so that it never exceeds added()
  const char* autotune = !parts_.settings.autotune ? "off" : tuning.final ? "done" : "running";
  return std::string("{\"kernels\": \"") + KernelFlavour() + "\", \"autotune\": \"" + autotune +
         "\", \"fusion_threshold\": " + std::to_string(tuning.fusion_threshold) +
         ", \"cycle_time_us\": " + std::to_string(tuning.cycle_time_us) +
         ", \"chunk_bytes\": " + std::to_string(tuning.chunk_bytes) +
         ", \"peers_by_shared_memory\": " + std::to_string(by_memory) +
         ", \"peers_by_socket\": " + std::to_string(by_socket) +
         ", \"operations_finished\": " + std::to_string(finished) +
         ", \"operations_under_way\": " + std::to_string(parts_.submissions->added() - finished) +
         ", \"collectives\": " + std::to_string(completions_.collectives()) +
         ", \"bytes\": " + std::to_string(completions_.bytes()) +
         ", \"direct_batches\": " + std::to_string(counters_.direct_batches.load()) +
         ", \"express_runs\": " + std::to_string(counters_.express_runs.load()) +
         ", \"single_copy_batches\": " + std::to_string(counters_.single_copy_batches.load()) + ", \"data_plane\": \"" +
         (parts_.foreign ? "mpi" : "own") + "\"" +
         ", \"mpi_batches\": " + std::to_string(counters_.foreign_batches.load()) +
         ", \"gpu_batches\": " + std::to_string(counters_.device_batches.load()) +
         ", \"prompt_batches\": " + std::to_string(counters_.prompt_batches.load()) +
         ", \"control_messages\": " + std::to_string(mailbox_.sent() - counters_.pings.load()) +
         ", \"streams\": " + std::to_string(parts_.connector->taken()) +
         ", \"counters\": " + ToJson(parts_.connector->traffic.Load()) +
         ", \"process_sets\": " + std::to_string(set_count_.load(std::memory_order_relaxed)) +
         ", \"refused_connections\": " + std::to_string(parts_.connector->refused()) + "}";
}

void Engine::LeaveDevices(Clock::time_point until) {
  if (!left_whole_) {
    try {
      Communicator::AbortAll(Communicators());
    } catch (const DeviceError&) {  // the driver library was shut down before us
    }
  }
  messages_->LeaveDevices();
  for (auto& [id, membership] : sets_) membership->set.LeaveDevice(left_whole_, until);
}

void Engine::CloseDescriptors() {
  mailbox_.CloseDescriptors();
  messages_->CloseDescriptors();
  for (auto& [id, membership] : sets_) membership->set.CloseDescriptors();
}

}  // namespace hvd
