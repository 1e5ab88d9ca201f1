// SPDX-License-Identifier: Apache-2.0
// Detection of ranks that wait for each other. A thread that has only waited for a while is reported to the leader of
// the set in which it waits. This leader adds the ranks that are missing and forwards the report to the global leader,
// which sees all sets. The global leader sends each deadlock it finds to all ranks, and the leaders of the sets fail
// the stuck operations.
#include <algorithm>
#include <utility>

#include "agreement/control.h"
#include "agreement/spoken.h"
#include "core/engine.h"

namespace hvd {
namespace {

const Announced* CountFor(const std::vector<Announced>& announced, const ProcessSet& set) {
  const auto of_set = [&](const Announced& one) { return one.set == set.id() && one.epoch == set.epoch(); };
  const auto found = std::find_if(announced.begin(), announced.end(), of_set);
  return found == announced.end() ? nullptr : &*found;
}

}  // namespace

bool Engine::AnybodyBlocked() const {
  return parts_.callers->any_waits() || !told_blocks_.empty() || !deadlocks_.empty();
}

// ---- at the rank that waits

// Report threads that have been blocked for a while. If the program can describe threads, ask about one thread at a
// time; later calls cover the rest.
void Engine::LookAtBlocks(Clock::time_point now) {
  if (!AnybodyBlocked()) return;
  const std::vector<Callers::Waiting> all = parts_.callers->AllWaiting();
  TellWhoGoesOn(all);
  for (const Callers::Waiting& waiting : all) {
    if (now - waiting.since < std::chrono::milliseconds(parts_.settings.deadlock_ms / 2)) continue;
    const auto told = told_blocks_.find(waiting.thread);
    if (told != told_blocks_.end() && now < told->second.next && !OthersHaveCalled(told->second, waiting)) continue;
    if (!FindPending(*waiting.handle).second) continue;
    if (!block_teller_.can_tell()) {
      ReportBlock(waiting, "", now);
    } else if (!block_teller_.asked()) {
      asked_about_ = waiting;
      block_teller_.Ask(now, waiting.thread);
    }
  }
  const Membership& global = *sets_.at(kGlobalSet);
  if (global.leader) FindDeadlocks(global, now);
}

// Return true if other threads have called the engine since this rank reported that they never had. The leaders must
// learn of that at once.
bool Engine::OthersHaveCalled(const ToldBlock& told, const Callers::Waiting& waiting) const {
  return told.others_are_idle && !parts_.callers->IsOnlyCaller(waiting.caller);
}

void Engine::TellWhoGoesOn(const std::vector<Callers::Waiting>& waiting) {
  for (auto told = told_blocks_.begin(); told != told_blocks_.end();) {
    const auto is_it = [&](const Callers::Waiting& one) {
      return one.thread == told->first && one.handle->id == told->second.handle;
    };
    if (std::any_of(waiting.begin(), waiting.end(), is_it)) {
      ++told;
      continue;
    }
    Block over;
    over.rank = parts_.identity.rank;
    over.thread = told->first;
    over.number = ++blocks_told_;
    over.over = true;
    TellWait(over);
    told = told_blocks_.erase(told);
  }
}

void Engine::AnswerAboutBlock() {
  const Clock::time_point now = Clock::now();
  const std::optional<std::string> answer = block_teller_.Answer(now);
  if (!answer) return;
  const Callers::Waiting asked = std::exchange(asked_about_, {});
  const std::vector<Callers::Waiting> all = parts_.callers->AllWaiting();
  const auto same = [&](const auto& one) { return one.thread == asked.thread && one.handle == asked.handle; };
  if (departures_.over().ok() && std::any_of(all.begin(), all.end(), same)) ReportBlock(asked, *answer, now);
}

// Report one blocked thread. `answer` is the program's description of the thread; see hvd_api's tell_block.
void Engine::ReportBlock(const Callers::Waiting& waiting, std::string_view answer, Clock::time_point now) {
  const auto [membership, operation] = FindPending(*waiting.handle);
  if (!operation || !membership->state.closed().ok() || !AllAnnounced()) return;
  const ProcessSet& set = membership->set;
  const bool told = !answer.empty() && answer[0] >= '0' && answer[0] <= '2';
  const std::string_view names = answer.substr(std::min(answer.find('\n'), answer.size()));
  if (told) answer.remove_suffix(names.size());
  Block block;
  block.rank = parts_.identity.rank;
  block.thread = waiting.thread;
  block.number = ++blocks_told_;
  block.alone = told && answer[0] == '1' && parts_.callers->IsOnly(waiting.caller);
  block.others_are_idle = told && answer[0] == '2' && parts_.callers->IsOnlyCaller(waiting.caller);
  if (block.others_are_idle && !names.empty()) block.others = names.substr(1);
  block.set = set.id();
  block.epoch = set.epoch();
  block.name = operation->request.name;
  block.group = operation->request.group;
  block.what = Spoken(operation->request);
  if (set.id() != kGlobalSet) {
    block.what += " of process set " + std::to_string(set.id()) + " (" + NameRanks(set.ranks()) + ")";
  }
  if (told && answer.size() > 1) block.what += " (" + std::string(answer.substr(1)) + ")";
  for (const auto& [id, other] : sets_) block.announced.push_back({id, other->set.epoch(), other->state.announced()});

  ToldBlock& notes = told_blocks_[waiting.thread];
  const bool again = notes.handle == waiting.handle->id;
  const Clock::duration pause = std::chrono::milliseconds(parts_.settings.deadlock_ms / 2);
  notes.pause = again ? 2 * notes.pause : pause;
  // The leaders judge by whether idle threads start to call, so report such a thread often.
  if (block.others_are_idle) notes.pause = std::min(notes.pause, 2 * pause);
  notes.others_are_idle = block.others_are_idle;
  notes.handle = waiting.handle->id;
  notes.next = now + notes.pause;
  const std::string message = control::EncodeBlock(set.tag(), control::Type::kBlock, block);
  OnBlock(*membership, message, std::string_view(message).substr(control::kHeaderBytes));
}

// Return an operation of the handle that is not agreed upon yet, with its process set; null pointers if there is none.
std::pair<Membership*, const Operation*> Engine::FindPending(const Handle& handle) const {
  for (const auto& [id, membership] : sets_) {
    const Operation* found = nullptr;
    membership->state.pending().Any([&](const Operation& operation) {
      if (operation.handle.get() == &handle) found = &operation;
      return found != nullptr;
    });
    if (found) return {membership.get(), found};
  }
  return {nullptr, nullptr};
}

// Return true if everything submitted so far has been announced to the leaders.
bool Engine::AllAnnounced() const {
  const auto postpones = [](const auto& item) { return item.second->express.has_postponed(); };
  return parts_.submissions->empty() && std::none_of(sets_.begin(), sets_.end(), postpones);
}

// ---- at the leader of the process set

void Engine::OnBlock(const Membership& membership, std::string_view whole, std::string_view body) {
  const ProcessSet& set = membership.set;
  if (!membership.leader) {
    if (membership.state.closed().ok()) mailbox_.Send(set.ranks()[set.tree().parent], whole);
    return;
  }
  Block block;
  if (!Decode(&body, &block)) return;
  const int member = set.IndexOf(block.rank);
  const Announced* count = CountFor(block.announced, set);
  const Coordinator& coordinator = membership.leader->coordinator();
  // Some of the rank's reports are still on their way, or it waits for something else by now. The rank repeats this
  // message later.
  if (member < 0 || !count || coordinator.Heard(member) != count->count) return;
  for (int missing : coordinator.MissingFor(member, block.name, block.group)) {
    block.missing.push_back({set.ranks()[static_cast<size_t>(missing)], coordinator.Heard(missing)});
  }
  if (!block.missing.empty()) TellWait(block);
}

void Engine::TellWait(const Block& block) {
  const Membership& global = *sets_.at(kGlobalSet);
  const std::string message = control::EncodeBlock(global.set.tag(), control::Type::kWait, block);
  OnWait(global, message, std::string_view(message).substr(control::kHeaderBytes));
}

// ---- at the global leader

void Engine::OnWait(const Membership& global, std::string_view whole, std::string_view body) {
  if (!global.leader) {
    if (global.state.closed().ok()) mailbox_.Send(global.set.ranks()[global.set.tree().parent], whole);
    return;
  }
  Block block;
  if (Decode(&body, &block) && !departures_.departed(block.rank)) deadlocks_.Hear(std::move(block));
}

void Engine::FindDeadlocks(const Membership& global, Clock::time_point now) {
  for (const Deadlock& found : deadlocks_.Find(now)) {
    const std::string message = control::EncodeDeadlock(global.set.tag(), found);
    OnDeadlock(global, message, std::string_view(message).substr(control::kHeaderBytes));
  }
}

// ---- at all ranks

void Engine::OnDeadlock(const Membership& global, std::string_view whole, std::string_view body) {
  SendDown(global.set, whole);
  Deadlock deadlock;
  if (!Decode(&body, &deadlock)) return;
  if (!deadlock.certain) {
    const auto is_me = [this](const Deadlock::Stuck& one) { return one.rank == parts_.identity.rank; };
    const bool concerned = std::any_of(deadlock.ranks.begin(), deadlock.ranks.end(), is_me);
    if (concerned) parts_.log.Warn(deadlock.text);
    return;
  }
  for (auto it = sets_.begin(); it != sets_.end();) {
    const int id = it->first;
    if (it->second->leader) FailStuck(*it->second, deadlock);
    it = sets_.upper_bound(id);  // these decisions may add and remove sets
  }
}

// Fail operations of ranks in a deadlock. A rank that has submitted something since it was found stuck is exempt,
// because it was released in another way.
void Engine::FailStuck(Membership& membership, const Deadlock& deadlock) {
  Coordinator& coordinator = membership.leader->coordinator();
  std::vector<int> waiting, stuck;
  for (const Deadlock::Stuck& one : deadlock.ranks) {
    const int member = membership.set.IndexOf(one.rank);
    if (member < 0) continue;
    stuck.push_back(member);
    const Announced* count = CountFor(one.announced, membership.set);
    if (count && count->count == coordinator.Heard(member)) waiting.push_back(member);
  }
  coordinator.FailStuck(waiting, stuck, Status::Mismatch(deadlock.text));
  Decide(membership);
}

}  // namespace hvd
