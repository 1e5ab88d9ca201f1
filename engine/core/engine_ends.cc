// SPDX-License-Identifier: Apache-2.0
// How a world ends, what is checked periodically, and what users can ask about it.
#include <algorithm>

#include "agreement/control.h"
#include "collectives/kernels.h"
#include "core/engine.h"

namespace hvd {

// ---- periodic checks

void Engine::Housekeep() {
  const Clock::time_point now = Clock::now();
  if (now < watches_.next_look() || !departures_.over().ok()) return;
  peers_.AcceptLinks(leaving_);
  Act(peers_.Look(now));
  const std::chrono::milliseconds limit(parts_.settings.peer_timeout_ms);
  for (const auto& [id, membership] : sets_.all()) membership->set.LookForAnswers(now, limit);
  messages_->LookForAnswers(now, limit);
  const Watches::Findings found = watches_.Look(now, leaving_.first_departure());
  if (found.has_failed) DecideInAllSets();
  Act(found.verdict);
  Act(departures_.Look(now));
  watches_.Schedule(now);
}

// ---- departures and the end of the world

// Read all messages that have arrived; from all peers if a liveness socket had data. Messages that a rank wrote before
// it ended are read before its end is judged, because they may contain the reason. A rank that ended after it sent an
// abort reason ended because of that reason. The leave notice on the liveness socket only shows that the end was
// intended; the message that makes us act on a departure arrives in the inbox, in order with the others.
void Engine::Hear(bool eager, bool* moved) {
  const std::vector<Neighbour*> spoke = peers_.ReadSpoken();
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
  for (const auto& [id, membership] : sets_.all()) {
    if (broken.first < 0) broken = membership->set.Broken();
    const bool needs_all = membership->busy() || membership->express.under_way();
    if (broken.first < 0 && needs_all) broken = departures_.UnexplainedAmong(membership->set.ranks());
  }
  if (broken.first < 0) return departures_.OnNothingBroken();
  Act(departures_.OnNeeded(broken.first, broken.second, Clock::now()));
}

void Engine::Act(const Departures::Verdict& verdict) {
  if (verdict.what == Departures::Verdict::What::kAbort) Abort(verdict.rank, verdict.text);
  if (verdict.what != Departures::Verdict::What::kPart) return;
  watches_.Forget(verdict.rank);
  messages_->Fail(verdict.rank, departures_.ShutDown(verdict.rank));
  leaving_.OnDeparted(verdict.rank);
}

// Leave the world normally. With `at_once`, device work that is unfinished now is abandoned, on this rank and on ranks
// that need this rank for it.
void Engine::Leave(bool at_once) {
  const bool unfinished = at_once && !parts_.devices->AwaitIdle(Clock::now());
  const bool busy = unfinished || std::any_of(sets_.all().begin(), sets_.all().end(), [](const auto& item) {
                      return item.second->busy() || item.second->express.passes_on();
                    });
  if (departures_.over().ok() && !busy)
    peers_.AcceptLinks(leaving_);  // so that these ranks receive the leave notice too
  Act(leaving_.Leave(busy));
  mailbox_.RingUnread();
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayFarewell();
  const Status left = Status::Failed("Horovod has been shut down: this rank called shutdown");
  parts_.submissions->Close(left);
  if (parts_.foreign) parts_.foreign->Close();
  departures_.End(left);
  Drain();  // these operations fail: the others know that this rank submits nothing more
  for (const auto& [id, membership] : sets_.all()) membership->Fail(departures_.over());
  messages_->Fail(-1, departures_.over());
}

bool Engine::Abort(int lost_rank, const std::string& text) {
  const Status why = Status::Failed(text, lost_rank);
  if (!departures_.End(why)) return false;
  parts_.submissions->Close(why);
  if (parts_.foreign) parts_.foreign->Close();
  // Send the message to the lost rank too: if it was only frozen, it learns later why it was dropped. Its inbox may be
  // full, but its liveness socket always takes the message.
  for (int rank : mailbox_.LinkedRanks()) mailbox_.Send(rank, control::EncodeAbort(lost_rank, text));
  for (Neighbour& neighbour : parts_.neighbours->all()) neighbour.life_line.SayLastWords({lost_rank, text});
  mailbox_.RingUnread();
  mailbox_.DropUnsent(lost_rank);
  for (const auto& [id, membership] : sets_.all()) membership->Fail(why);
  watches_.gpus().Abandon();
  messages_->Fail(-1, why);
  Drain();
  parts_.log.Info([&] { return "this world has ended: " + text; });
  return true;
}

bool Engine::AllSent() const {
  const bool idle =
      std::all_of(sets_.all().begin(), sets_.all().end(), [](const auto& item) { return item.second->set.AllSent(); });
  return idle && messages_->AllSent() && mailbox_.AllSent();
}

std::string Engine::Describe() const {
  int by_memory = 0, by_socket = 0;
  for (int rank = 0; rank < parts_.identity.size; ++rank) {
    if (rank == parts_.identity.rank) continue;
    const Neighbour* neighbour = parts_.neighbours->Find(rank);
    ++(neighbour && neighbour->arena ? by_memory : by_socket);
  }
  const Tuning tuning = sets_.tuned().Load();
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
         ", \"bytes\": " + std::to_string(completions_.bytes()) + counters_.ToJson() + ", \"data_plane\": \"" +
         (parts_.foreign ? "mpi" : "own") + "\"" +
         ", \"control_messages\": " + std::to_string(mailbox_.sent() - counters_.pings.load()) +
         ", \"streams\": " + std::to_string(parts_.connector->taken()) +
         ", \"counters\": " + ToJson(parts_.connector->traffic.Load()) +
         ", \"process_sets\": " + std::to_string(sets_.count()) +
         ", \"refused_connections\": " + std::to_string(parts_.connector->refused()) + "}";
}

void Engine::LeaveDevices(Clock::time_point until) {
  if (!leaving_.left_whole()) watches_.gpus().AbortCommunicators();
  messages_->LeaveDevices();
  for (const auto& [id, membership] : sets_.all()) membership->set.LeaveDevice(leaving_.left_whole(), until);
}

void Engine::CloseDescriptors() {
  mailbox_.CloseDescriptors();
  messages_->CloseDescriptors();
  for (const auto& [id, membership] : sets_.all()) membership->set.CloseDescriptors();
}

}  // namespace hvd
