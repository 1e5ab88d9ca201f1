// SPDX-License-Identifier: Apache-2.0
#include "core/membership.h"

#include <chrono>
#include <utility>

#include "core/shown.h"

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
      mail({set.tag(), set.me(), &set.ranks(), &set.tree()}, &state, services->departures, services->mailbox),
      leader(set.leads() ? MakeLeader(set, *around.settings) : nullptr),
      express(set, &state, leader.get(), services),
      applier(&set, &state, leader.get(), &express, services),
      prompt(&set, services),
      services_(*services) {}

Status Membership::OnReport(std::string_view whole, std::string_view body) {
  if (!leader) {
    mail.SendUpIfOpen(whole);
    return Status::Ok();
  }
  control::Report report;
  if (!control::DecodeReport(control::TypeOf(whole), &body, &report) || report.member >= set.ranks().size()) {
    return Status::Failed("a member of process set " + std::to_string(set.id()) + " sent a malformed report");
  }
  Count(std::move(report));
  return Status::Ok();
}

// Count a member's report. For the leader only.
void Membership::Count(control::Report report) {
  const EntryCache& cache = state.cache();
  if (Timeline* shown = services_.timeline->if_on()) ShowReport(shown, set, cache, report);
  Coordinator& coordinator = leader->coordinator();
  const int member = static_cast<int>(report.member);
  for (uint32_t slot : report.slots) {
    if (express.HoldBack(member, slot, report.seen, nullptr)) continue;
    coordinator.OnReady(member, slot, report.seen);
  }
  if (!report.slots.empty()) {
    if (const Entry* known = cache.Find(report.slots.back())) leader->Hear(report.member, known->request.name);
  }
  if (!report.has_request) return;
  leader->Hear(report.member, report.request.name);
  const Entry* known = cache.Find(report.request.name);
  if (known && express.HoldBack(member, known->slot, report.seen, &report.request)) return;
  coordinator.OnRequest(member, report.request);
}

void Membership::Fail(const Status& status) {
  for (auto& operation : state.pending().TakeAll()) services_.completions->Finish(std::move(operation), status);
  express.Fail(status);
  applier.Fail(status);
  prompt.Fail(status);
}

}  // namespace hvd
