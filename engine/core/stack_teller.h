// SPDX-License-Identifier: Apache-2.0
// Asks the program that embeds the engine (Python) what it is doing. It asks on a separate thread, because the program
// may hold what the answer needs (Python's GIL) indefinitely and the engine must not block.
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
  using Tell = uint64_t (*)(void* context, char* text, uint64_t capacity);  // returns the bytes written
  using TellOf = uint64_t (*)(void* context, uint64_t thread, char* text, uint64_t capacity);

  static constexpr std::chrono::seconds kLimit{2};
  static constexpr size_t kMostBytes = 3500;

  StackTeller() = default;
  StackTeller(Tell tell, void* context) : tell_(tell), context_(context) {}
  StackTeller(TellOf tell, void* context) : tell_of_(tell), context_(context) {}

  bool can_tell() const { return tell_ || tell_of_; }
  // Start to ask, if there is a function to call and no question is open. `thread` is the thread in question, for a
  // TellOf.
  void Ask(Clock::time_point now, uint64_t thread = 0);
  bool asked() const { return asked_; }
  // Return the answer once per question, or after kLimit a text that says that there was none; nothing until then.
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
