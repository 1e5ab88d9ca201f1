// SPDX-License-Identifier: Apache-2.0
#include "core/membership.h"

#include <chrono>
#include <utility>

namespace hvd {
namespace {

std::unique_ptr<Leader> MakeLeader(const ProcessSet& set, const Settings& settings) {
  CoordinatorOptions options;
  options.fusion_threshold = settings.fusion_threshold;
  options.cache_capacity = settings.cache_capacity;
  options.disable_group_fusion = settings.disable_group_fusion;
  options.hosts = set.host_layout();
  options.algorithms = {settings.deterministic != 0, settings.host_algorithm - 1};
  const StallInspector::Options stalls{std::chrono::milliseconds(settings.stall_warning_ms),
                                       std::chrono::milliseconds(settings.stall_shutdown_ms)};
  return std::make_unique<Leader>(set.ranks(), options, stalls);
}

}  // namespace

Membership::Membership(int id, uint32_t epoch, std::vector<int> ranks, const std::vector<int64_t>& regions,
                       const Surroundings& around, const Services* services)
    : set(id, epoch, std::move(ranks), regions, around),
      leader(set.leads() ? MakeLeader(set, *around.settings) : nullptr),
      express(set, &state, leader.get(), services),
      applier(&set, &state, leader.get(), &express, services),
      prompt(&set, services) {}

}  // namespace hvd
