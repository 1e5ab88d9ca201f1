// SPDX-License-Identifier: Apache-2.0
#include "core/gpu_watch.h"

#include <string>
#include <utility>

#include "agreement/spoken.h"

namespace hvd {
namespace {

using Verdict = Departures::Verdict;

constexpr std::chrono::seconds kBeforeNcclIsBlamed{2};
constexpr std::chrono::seconds kAfterDeparture{5};

}  // namespace

Verdict GpuWatch::Look(Clock::time_point now, const Leaving::First& first) {
  Verdict verdict = LookAtNccl(now);
  return verdict.what == Verdict::What::kAbort ? verdict : LookAtLaunches(now, first);
}

// End the world if NCCL reports an error for some time. If a rank was lost, the engine finds out before this time is
// over. If a member has left, NCCL's error may only mean that its connections are closed: nothing new runs on that
// communicator, and LookAtLaunches ends work that still needs the member.
Verdict GpuWatch::LookAtNccl(Clock::time_point now) {
  std::string trouble;
  for (const auto& [id, membership] : sets_.all()) {
    if (!membership->set.nccl() || !trouble.empty()) continue;
    if (!services_.departures->LeavingAmong(membership->set.ranks())) trouble = membership->set.nccl()->Trouble();
  }
  if (trouble.empty()) {
    nccl_troubled_since_ = Clock::time_point();
    return {};
  }
  if (nccl_troubled_since_ == Clock::time_point()) nccl_troubled_since_ = now;
  if (now - nccl_troubled_since_ < kBeforeNcclIsBlamed) return {};
  return services_.departures->Lose(sets_.rank(), "NCCL reported an error there: " + trouble);
}

// End the world if launched work on a GPU takes too long. Agreed operations were submitted by all members; only for
// those without negotiation it is unknown. A rank that leaves waits for its GPU first, so work that it contributed to
// finishes soon.
Verdict GpuWatch::LookAtLaunches(Clock::time_point now, const Leaving::First& first) const {
  const auto& [gone, since] = first;
  if (gone >= 0 && now - since >= kAfterDeparture && !devices_.watch().Overdue(now, kAfterDeparture).empty()) {
    return {Verdict::What::kAbort, gone, services_.departures->ShutDown(gone).text};
  }
  const std::chrono::milliseconds limit(services_.settings->stall_shutdown_ms);
  if (limit.count() == 0) return {};
  const std::string name = devices_.watch().Overdue(now, limit);
  if (name.empty()) return {};
  return {Verdict::What::kAbort, -1,
          SpokenName(name) + " was launched " +
              std::to_string(std::chrono::duration_cast<std::chrono::seconds>(limit).count()) +
              " s ago, and the GPU is not done with it: other ranks have not called it, or with tensors of another "
              "size, or in another order. TORCH_DISTRIBUTED_DEBUG=DETAIL lets ranks agree on each call, and tells. "
              "The time limit is the group's, or HOROVOD_STALL_SHUTDOWN_TIME_SECONDS"};
}

std::vector<std::shared_ptr<Communicator>> GpuWatch::Communicators() const {
  std::vector<std::shared_ptr<Communicator>> all;
  for (const auto& [id, membership] : sets_.all()) {
    const NcclMeeting* const nccl = membership->set.nccl();
    if (nccl && nccl->communicator()) all.push_back(nccl->communicator());
  }
  return all;
}

void GpuWatch::Abandon() {
  for (const auto& [id, membership] : sets_.all()) membership->set.LetGoOfDevice();
  if (auto all = Communicators(); !all.empty()) {
    devices_.launcher().PutFirst([all = std::move(all)] { Communicator::AbortAll(all); });
  }
}

void GpuWatch::AbortCommunicators() const {
  try {
    Communicator::AbortAll(Communicators());
  } catch (const DeviceError&) {  // the driver library was shut down before us
  }
}

}  // namespace hvd
