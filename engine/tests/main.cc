// SPDX-License-Identifier: Apache-2.0
// Entry point of the engine's unit tests. A test that exceeds the time limit prints the stack of each thread and ends
// the run.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <dirent.h>
#include <doctest/doctest.h>
#include <execinfo.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>
#include <thread>

#include "tests/repeats.h"

#ifdef HVD_SANITIZED
const bool hvd::kSanitized = true;
#else
const bool hvd::kSanitized = false;
#endif

namespace {

constexpr std::chrono::seconds kLimit{150};  // generous, because sanitizers are slow on two busy cores
constexpr int kShowStack = SIGUSR2;
std::atomic<int> shown{0};

void ShowStack(int) {
  void* frames[64];
  backtrace_symbols_fd(frames, backtrace(frames, 64), STDERR_FILENO);
  ++shown;
}

// Print the stacks one after the other, so that their lines do not mix.
void ShowAllStacks() {
  DIR* tasks = opendir("/proc/self/task");
  while (const dirent* entry = tasks ? readdir(tasks) : nullptr) {
    const int thread = std::atoi(entry->d_name);
    if (thread == 0 || thread == syscall(SYS_gettid)) continue;
    std::fprintf(stderr, "-- thread %d\n", thread);
    const int before = shown;
    syscall(SYS_tgkill, getpid(), thread, kShowStack);
    for (int i = 0; i < 100 && shown == before; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  if (tasks) closedir(tasks);
}

class TimeLimit : public doctest::IReporter {
 public:
  explicit TimeLimit(const doctest::ContextOptions&) {}
  void test_case_start(const doctest::TestCaseData& test) override { Begin(test.m_name); }
  void test_case_end(const doctest::CurrentTestCaseStats&) override { End(); }

  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {
    std::signal(kShowStack, ShowStack);
    void* frame;
    backtrace(&frame, 1);  // loads the unwinder now, because a signal handler must not
  }
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}

 private:
  void Begin(const char* name) {
    over_ = false;
    watch_ = std::thread([this, test = std::string(name)] {
      std::unique_lock<std::mutex> lock(mutex_);
      if (changed_.wait_for(lock, kLimit, [this] { return over_; })) return;
      std::fprintf(stderr, "'%s' takes more than %d s\n", test.c_str(), static_cast<int>(kLimit.count()));
      ShowAllStacks();
      std::_Exit(1);
    });
  }
  void End() {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      over_ = true;
    }
    changed_.notify_all();
    watch_.join();
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  bool over_ = true;
  std::thread watch_;
};

REGISTER_LISTENER("time limit", 1, TimeLimit);

}  // namespace
