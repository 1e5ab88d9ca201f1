// SPDX-License-Identifier: Apache-2.0
#include "core/deadlock_watch.h"

#include <algorithm>
#include <utility>

#include "agreement/spoken.h"
#include "base/rank_list.h"

namespace hvd {
namespace {

// Number of deadlock limits to wait for threads that have not called yet but could end a wait.
constexpr int kIdlePatience = 10;
constexpr std::chrono::milliseconds kShortestLook{20};

const Announced* CountFor(const std::vector<Announced>& announced, const ProcessSet& set) {
  const auto of_set = [&](const Announced& one) { return one.set == set.id() && one.epoch == set.epoch(); };
  const auto found = std::find_if(announced.begin(), announced.end(), of_set);
  return found == announced.end() ? nullptr : &*found;
}

}  // namespace

DeadlockWatch::DeadlockWatch(const StackTeller& teller, const Callers* callers, SetRegistry* sets,
                             const Services* services)
    : teller_(teller),
      callers_(*callers),
      sets_(*sets),
      services_(*services),
      deadlocks_(std::chrono::milliseconds(services->settings->deadlock_ms / 4), kIdlePatience * limit()) {}

bool DeadlockWatch::AnybodyBlocked() const { return callers_.any_waits() || !reported_.empty() || !deadlocks_.empty(); }

DeadlockWatch::Clock::time_point DeadlockWatch::NextLook(Clock::time_point now) const {
  if (!is_on()) return Clock::time_point::max();
  const uint64_t share = AnybodyBlocked() ? 8 : 4;
  return now + std::max(kShortestLook, std::chrono::milliseconds(services_.settings->deadlock_ms / share));
}

// ---- at the rank that waits

// If the program can describe threads, ask about one thread at a time; later calls cover the rest.
bool DeadlockWatch::Look(Clock::time_point now) {
  if (!is_on() || !AnybodyBlocked()) return false;
  const std::vector<Callers::Waiting> all = callers_.AllWaiting();
  ReportEnds(all);
  for (const Callers::Waiting& waiting : all) {
    if (now - waiting.since < std::chrono::milliseconds(services_.settings->deadlock_ms / 2)) continue;
    const auto known = reported_.find(waiting.thread);
    if (known != reported_.end() && now < known->second.next && !OthersHaveCalled(known->second, waiting)) continue;
    if (!sets_.FindPending(*waiting.handle).second) continue;
    if (!teller_.can_tell()) {
      Report(waiting, "", now);
    } else if (!teller_.asked()) {
      asked_about_ = waiting;
      teller_.Ask(now, waiting.thread);
    }
  }
  Membership& global = sets_.global();
  if (!global.leader) return false;
  bool has_failed = false;
  for (const Deadlock& found : deadlocks_.Find(now)) {
    global.mail.Publish(control::Type::kDeadlock, found);
    has_failed |= Handle(found);
  }
  return has_failed;
}

// Return true if other threads have called the engine since this rank reported that they never had. The leaders must
// learn of that at once.
bool DeadlockWatch::OthersHaveCalled(const Reported& reported, const Callers::Waiting& waiting) const {
  return reported.others_are_idle && !callers_.IsOnlyCaller(waiting.caller);
}

// Report the threads that no longer wait.
void DeadlockWatch::ReportEnds(const std::vector<Callers::Waiting>& waiting) {
  for (auto known = reported_.begin(); known != reported_.end();) {
    const auto is_it = [&](const Callers::Waiting& one) {
      return one.thread == known->first && one.handle->id == known->second.handle;
    };
    if (std::any_of(waiting.begin(), waiting.end(), is_it)) {
      ++known;
      continue;
    }
    Block over;
    over.rank = sets_.rank();
    over.thread = known->first;
    over.number = ++reports_;
    over.over = true;
    SendToGlobalLeader(std::move(over));
    known = reported_.erase(known);
  }
}

void DeadlockWatch::ReadAnswer() {
  const Clock::time_point now = Clock::now();
  const std::optional<std::string> answer = teller_.Answer(now);
  if (!answer) return;
  const Callers::Waiting asked = std::exchange(asked_about_, {});
  const std::vector<Callers::Waiting> all = callers_.AllWaiting();
  const auto same = [&](const auto& one) { return one.thread == asked.thread && one.handle == asked.handle; };
  if (services_.departures->over().ok() && std::any_of(all.begin(), all.end(), same)) Report(asked, *answer, now);
}

// Report one blocked thread. `answer` is the program's description of the thread; see hvd_api's tell_block.
void DeadlockWatch::Report(const Callers::Waiting& waiting, std::string_view answer, Clock::time_point now) {
  const auto [membership, operation] = sets_.FindPending(*waiting.handle);
  if (!operation || !membership->state.closed().ok() || !sets_.AllAnnounced()) return;
  Block block = DescribeBlock(waiting, answer, membership->set, *operation);
  Reported& notes = reported_[waiting.thread];
  const bool again = notes.handle == waiting.handle->id;
  const Clock::duration pause = std::chrono::milliseconds(services_.settings->deadlock_ms / 2);
  notes.pause = again ? 2 * notes.pause : pause;
  // The leaders judge by whether idle threads start to call, so report such a thread often.
  if (block.others_are_idle) notes.pause = std::min(notes.pause, 2 * pause);
  notes.others_are_idle = block.others_are_idle;
  notes.handle = waiting.handle->id;
  notes.next = now + notes.pause;
  const Membership& waits_in = *membership;
  membership->mail.ToLeader(control::Type::kBlock, std::move(block),
                            [&](Block mine) { AddMissing(waits_in, std::move(mine)); });
}

Block DeadlockWatch::DescribeBlock(const Callers::Waiting& waiting, std::string_view answer, const ProcessSet& set,
                                   const Operation& operation) {
  const bool told = !answer.empty() && answer[0] >= '0' && answer[0] <= '2';
  const std::string_view names = answer.substr(std::min(answer.find('\n'), answer.size()));
  if (told) answer.remove_suffix(names.size());
  Block block;
  block.rank = sets_.rank();
  block.thread = waiting.thread;
  block.number = ++reports_;
  block.alone = told && answer[0] == '1' && callers_.IsOnly(waiting.caller);
  block.others_are_idle = told && answer[0] == '2' && callers_.IsOnlyCaller(waiting.caller);
  if (block.others_are_idle && !names.empty()) block.others = names.substr(1);
  block.set = set.id();
  block.epoch = set.epoch();
  block.name = operation.request.name;
  block.group = operation.request.group;
  block.what = Spoken(operation.request);
  if (set.id() != kGlobalSet) {
    block.what += " of process set " + std::to_string(set.id()) + " (" + NameRanks(set.ranks()) + ")";
  }
  if (told && answer.size() > 1) block.what += " (" + std::string(answer.substr(1)) + ")";
  for (const auto& [id, other] : sets_.all()) {
    block.announced.push_back({id, other->set.epoch(), other->state.announced()});
  }
  return block;
}

bool DeadlockWatch::OnMessage(Membership& membership, std::string_view whole, std::string_view body) {
  const control::Type type = control::TypeOf(whole);
  bool has_failed = false;
  if (type == control::Type::kBlock) {
    membership.mail.OnWayUp<Block>(whole, body, [&](Block block) { AddMissing(membership, std::move(block)); });
  } else if (type == control::Type::kWait) {
    membership.mail.OnWayUp<Block>(whole, body, [&](Block block) { Collect(std::move(block)); });
  } else {
    membership.mail.OnWayDown<Deadlock>(whole, body, [&](const Deadlock& found) { has_failed = Handle(found); });
  }
  return has_failed;
}

// ---- at the leader of the process set

void DeadlockWatch::AddMissing(const Membership& membership, Block block) {
  const ProcessSet& set = membership.set;
  const int member = set.IndexOf(block.rank);
  const Announced* count = CountFor(block.announced, set);
  const Coordinator& coordinator = membership.leader->coordinator();
  // Some of the rank's reports are still on their way, or it waits for something else by now. The rank repeats this
  // message later.
  if (member < 0 || !count || coordinator.Heard(member) != count->count) return;
  for (int missing : coordinator.MissingFor(member, block.name, block.group)) {
    block.missing.push_back({set.ranks()[static_cast<size_t>(missing)], coordinator.Heard(missing)});
  }
  if (!block.missing.empty()) SendToGlobalLeader(std::move(block));
}

void DeadlockWatch::SendToGlobalLeader(Block block) {
  sets_.global().mail.ToLeader(control::Type::kWait, std::move(block), [&](Block mine) { Collect(std::move(mine)); });
}

// ---- at the global leader

void DeadlockWatch::Collect(Block block) {
  if (!services_.departures->departed(block.rank)) deadlocks_.Hear(std::move(block));
}

// ---- at all ranks

// Warn this rank's user of a deadlock that may end, or fail the operations of one that is certain. Return true if
// operations have failed.
bool DeadlockWatch::Handle(const Deadlock& deadlock) {
  if (!deadlock.certain) {
    const auto is_me = [this](const Deadlock::Stuck& one) { return one.rank == sets_.rank(); };
    const bool concerned = std::any_of(deadlock.ranks.begin(), deadlock.ranks.end(), is_me);
    if (concerned) services_.log.Warn(deadlock.text);
    return false;
  }
  bool leads_any = false;
  for (const auto& [id, membership] : sets_.all()) {
    if (!membership->leader) continue;
    FailStuck(*membership, deadlock);
    leads_any = true;
  }
  return leads_any;
}

// Fail operations of ranks in a deadlock. A rank that has submitted something since it was found stuck is exempt,
// because it was released in another way.
void DeadlockWatch::FailStuck(Membership& membership, const Deadlock& deadlock) {
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
}

}  // namespace hvd
