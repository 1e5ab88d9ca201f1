// SPDX-License-Identifier: Apache-2.0
// What this rank's program is doing, told by whoever embeds the engine (Python). It is asked on a thread of its own:
// the program may hold what the telling needs (Python's GIL) for ever, and the engine waits for nobody.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>

namespace hvd {

class StackTeller {
 public:
  using Clock = std::chrono::steady_clock;
  using Tell = uint64_t (*)(void* context, char* text, uint64_t capacity);  // bytes written
  using TellOf = uint64_t (*)(void* context, uint64_t thread, char* text, uint64_t capacity);

  static constexpr std::chrono::seconds kLimit{2};
  static constexpr size_t kMostBytes = 3500;

  StackTeller() = default;
  StackTeller(Tell tell, void* context) : tell_(tell), context_(context) {}
  StackTeller(TellOf tell, void* context) : tell_of_(tell), context_(context) {}

  bool can_tell() const { return tell_ || tell_of_; }
  // Begins to find out, if anybody can tell and nothing is under way. `thread`: what is asked about, by a TellOf.
  void Ask(Clock::time_point now, uint64_t thread = 0);
  bool asked() const { return asked_; }
  // Once after each question: the answer, or after the limit that there is none. Nothing while there may still be one.
  std::optional<std::string> Answer(Clock::time_point now);

 private:
  struct Telling;

  Tell tell_ = nullptr;
  TellOf tell_of_ = nullptr;
  void* context_ = nullptr;
  bool asked_ = false;
  Clock::time_point since_;
  std::shared_ptr<Telling> telling_;  // shared with its thread, which may outlive the engine
};

}  // namespace hvd
