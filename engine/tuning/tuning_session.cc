// SPDX-License-Identifier: Apache-2.0
#include "tuning/tuning_session.h"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <functional>

namespace hvd {
namespace {

AutotuneOptions OptionsOf(const Settings& settings) {
  AutotuneOptions options;
  options.start = InitialTuning(settings);
  options.fixed_fusion = settings.autotune_fixed & kFixedFusion;
  options.fixed_cycle = settings.autotune_fixed & kFixedCycle;
  options.fixed_chunk = settings.autotune_fixed & kFixedChunk;
  options.warmup_samples = static_cast<int>(settings.autotune_warmup_samples);
  options.search_samples = static_cast<int>(settings.autotune_max_samples);
  options.noise = settings.autotune_noise_permille / 1000.0;
  return options;
}

const char* NameOf(Autotuner::Phase phase) {
  switch (phase) {
    case Autotuner::Phase::kWarmup:
      return "warmup";
    case Autotuner::Phase::kSearch:
      return "search";
    case Autotuner::Phase::kFinal:
      return "final";
    default:
      return "chosen";
  }
}

std::string TextOf(const Tuning& values, double score, Autotuner::Phase phase) {
  char text[200];
  std::snprintf(text, sizeof text,
                "autotune (%s): fusion up to %" PRIu64 " bytes, cycle time %g ms, chunks of %" PRIu64
                " bytes: %.4g bytes/s",
                NameOf(phase), values.fusion_threshold, static_cast<double>(values.cycle_time_us) / 1000,
                values.chunk_bytes, score);
  return text;
}

}  // namespace

bool StepFinder::Begins(const Request& request) {
  if (request.IsNumbered()) return false;
  const bool again = !seen_.insert(std::hash<std::string>()(request.name)).second;
  if (!again && seen_.size() < kMostNames) return false;
  seen_.clear();
  seen_.insert(std::hash<std::string>()(request.name));
  return true;
}

// The first seven columns are those of Horovod's log, so that programs that read that log can read this one.
AutotuneLog::AutotuneLog(const Settings& settings, ByHost by_host, const Log& log)
    : log_(log),
      path_(settings.autotune_log),
      common_(std::string(by_host.sums ? "1," : "0,") + (by_host.moves ? "1,0," : "0,0,") +
              (settings.cache_capacity ? "1" : "0")) {
  if (path_.empty()) return;
  file_.reset(std::fopen(path_.c_str(), "we"));
  if (!file_) {
    Warn("cannot be opened");
    return;
  }
  std::fputs(
      "hierarchical_allreduce,hierarchical_allgather,torus_allreduce,cache_enabled,cycle_time_ms,"
      "tensor_fusion_threshold,score,chunk_bytes,phase\n",
      file_.get());
  if (std::fflush(file_.get()) != 0) Warn("cannot be written");
}

void AutotuneLog::Write(const Tuning& values, double score, Autotuner::Phase phase) {
  if (!file_) return;
  std::fprintf(file_.get(), "%s,%g,%" PRIu64 ",%.6g,%" PRIu64 ",%s\n", common_.c_str(),
               static_cast<double>(values.cycle_time_us) / 1000, values.fusion_threshold, score, values.chunk_bytes,
               NameOf(phase));
  if (std::fflush(file_.get()) != 0) Warn("cannot be written");
}

void AutotuneLog::Warn(const char* what) {
  log_.Warn("the autotuner's log '" + path_ + "' " + what + " (" + std::strerror(errno) +
            "); tuning goes on without it. Set HOROVOD_AUTOTUNE_LOG to a file that rank 0 can write.");
  file_.reset();
}

TuningSession::TuningSession(const Settings& settings, ByHost by_host, const Log& log)
    : log_(log),
      tuner_(OptionsOf(settings)),
      file_(settings, by_host, log),
      steps_per_sample_(std::max(static_cast<int>(settings.autotune_steps_per_sample), 1)) {}

std::optional<Tuning> TuningSession::OnBatch(const Entries& entries, Clock::time_point now) {
  next_.reset();
  for (const auto& entry : entries) {
    if (!MovesTensor(entry->request.kind)) continue;
    if (finder_.Begins(entry->request)) BeginStep(now);
    bytes_ += static_cast<double>(entry->request.Bytes());
  }
  return next_;
}

void TuningSession::BeginStep(Clock::time_point now) {
  if (tuner_.phase() == Autotuner::Phase::kChosen) {  // chosen from the beginning if there is nothing to tune
    EndSample(now);
  } else if (settling_) {
    BeginSample(now);
  } else if (++steps_ >= steps_per_sample_) {
    EndSample(now);
  }
}

void TuningSession::BeginSample(Clock::time_point now) {
  settling_ = false;
  steps_ = 0;
  bytes_ = 0;
  began_ = now;
}

void TuningSession::EndSample(Clock::time_point now) {
  if (next_ && next_->final) return;
  const Tuning measured = tuner_.values();
  const Autotuner::Phase phase = tuner_.phase();
  const double seconds = std::chrono::duration<double>(now - began_).count();
  tuner_.AddSample(bytes_, seconds);
  if (phase != Autotuner::Phase::kChosen) {
    const double score = seconds > 0 ? bytes_ / seconds : 0;
    file_.Write(measured, score, phase);
    log_.Debug([&] { return TextOf(measured, score, phase); });
  }
  BeginSample(now);
  if (tuner_.phase() == Autotuner::Phase::kChosen) {
    file_.Write(tuner_.values(), tuner_.score(), tuner_.phase());
    log_.Info([&] { return TextOf(tuner_.values(), tuner_.score(), tuner_.phase()); });
    next_ = tuner_.values();
    next_->final = true;
  } else if (!(tuner_.values() == measured)) {
    next_ = tuner_.values();
    settling_ = true;
  }
}

}  // namespace hvd
