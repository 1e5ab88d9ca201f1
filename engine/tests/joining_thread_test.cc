// SPDX-License-Identifier: Apache-2.0
// Whichever way the owner of a thread ends, the thread ends with it and the process continues.
#include "base/joining_thread.h"

#include <doctest/doctest.h>

#include <atomic>
#include <csignal>
#include <optional>
#include <stdexcept>

namespace {

using hvd::JoiningThread;

// State of a thread that runs until `stop` is set.
struct Watched {
  std::atomic<bool> stop{false}, ended{false};

  JoiningThread Start() {
    const auto body = [this] {
      while (!stop) std::this_thread::yield();
      ended = true;
    };
    return JoiningThread("hvd-test", body, [this] { stop = true; });
  }
};

// Owner whose constructor throws: its own destructor never runs, but those of its members do.
struct Unfinished {
  JoiningThread thread;
  explicit Unfinished(Watched* watched) : thread(watched->Start()) { throw std::runtime_error("after the start"); }
};

}  // namespace

TEST_CASE("joining thread: a constructor that throws after the start ends it") {
  Watched watched;
  CHECK_THROWS_AS(Unfinished{&watched}, std::runtime_error);
  CHECK(watched.ended);
}

TEST_CASE("joining thread: one that is replaced or moved from is ended once") {
  Watched first, second;
  JoiningThread thread = first.Start();
  CHECK(thread.running());
  thread = second.Start();
  CHECK(first.ended);
  CHECK_FALSE(second.stop);
  JoiningThread other = std::move(thread);
  CHECK_FALSE(thread.running());
  other.End();
  CHECK(second.ended);
  other.End();
  CHECK_FALSE(other.running());
}

TEST_CASE("joining thread: one that ends itself is let go") {
  std::atomic<bool> ended{false};
  std::optional<JoiningThread> thread;
  std::atomic<bool> ready{false};
  const auto body = [&] {
    while (!ready) std::this_thread::yield();
    thread.reset();
    ended = true;
  };
  thread.emplace("hvd-test", body, [] {});
  ready = true;
  while (!ended) std::this_thread::yield();
  CHECK_FALSE(thread.has_value());
}

TEST_CASE("joining thread: it takes no signals, and the starter keeps its own") {
  sigset_t before, inside, after;
  pthread_sigmask(SIG_SETMASK, nullptr, &before);
  JoiningThread thread("hvd-test", [&] { pthread_sigmask(SIG_SETMASK, nullptr, &inside); }, [] {});
  thread.End();
  pthread_sigmask(SIG_SETMASK, nullptr, &after);
  CHECK(sigismember(&inside, SIGTERM) == 1);
  CHECK(sigismember(&after, SIGTERM) == sigismember(&before, SIGTERM));
}
