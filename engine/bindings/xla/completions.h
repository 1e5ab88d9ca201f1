// SPDX-License-Identifier: Apache-2.0
// Threads that inform XLA of finished calls. XLA continues the program on the informing thread, for as long as the
// program runs, so this must never be a thread of the engine.
#pragma once

#include <condition_variable>
#include <functional>
#include <mutex>
#include <queue>

namespace hvd::xla {

class Completions {
 public:
  // Return the only instance. It is leaked on purpose, because its threads live as long as the process.
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
