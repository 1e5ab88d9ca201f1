// SPDX-License-Identifier: Apache-2.0
// Threads that tell XLA of finished calls. XLA goes on with the program on the thread that tells it, for as long as the
// program lasts: that must never be the engine's.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>

namespace hvd::xla {

class Completions {
 public:
  // Leaked on purpose: its threads live as long as the process.
  static Completions& All();
  void Post(std::function<void()> task);

 private:
  void Run();

  static constexpr int kMostThreads = 8;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::queue<std::function<void()>> tasks_;
  int threads_ = 0, idle_ = 0;
};

}  // namespace hvd::xla
