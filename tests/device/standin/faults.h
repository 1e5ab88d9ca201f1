// SPDX-License-Identifier: Apache-2.0
// Failures that a test asks for. STANDIN_FAIL="cuIpcOpenMemHandle_v2=201" makes a function fail always. With
// "cuLaunchKernel=700@5" every function fails from the fifth call on, as after a faulty kernel. Rules are separated by
// commas.
#pragma once

#include <atomic>
#include <cstdlib>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <sstream>
#include <string>

#include <unistd.h>

namespace standin {

class Faults {
 public:
  static Faults& Get() {
    static Faults* const faults = new Faults;  // never destroyed, because threads may still run at the end
    return *faults;
  }

  void Arm(const std::string& rules) {
    std::lock_guard<std::mutex> lock(mutex_);
    std::istringstream words(rules);
    for (std::string word; std::getline(words, word, ',');) {
      const size_t equals = word.find('='), at = word.find('@');
      if (equals == std::string::npos) continue;
      Rule& rule = rules_[word.substr(0, equals)];
      rule.code = std::atoi(word.c_str() + equals + 1);
      rule.from = at == std::string::npos ? 0 : std::atol(word.c_str() + at + 1);
      rule.calls = 0;
    }
  }

  // Return 0, or the error that the function has to return.
  int Enter(const char* function) {
    // A forked child must not call the driver: it has none, and locks may be held.
    if (getpid() != process_) std::abort();
    if (const int code = sticky_.load()) return code;
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = rules_.find(function);
    if (found == rules_.end()) return 0;
    Rule& rule = found->second;
    if (rule.from == 0) return rule.code;
    if (++rule.calls < rule.from) return 0;
    std::lock_guard<std::shared_mutex> at_rest(at_work_);
    sticky_.store(rule.code);
    return rule.code;
  }

  bool broken() const { return sticky_.load() != 0; }

  // Run `action` unless a kernel has failed. A caller that has received that error may unmap memory that streams used,
  // so afterwards no work on the device reads or writes.
  template <typename Action>
  void WhileWhole(Action action) {
    std::shared_lock<std::shared_mutex> working(at_work_);
    if (!broken()) action();
  }

 private:
  struct Rule {
    int code = 0;
    long from = 0, calls = 0;
  };

  const pid_t process_ = getpid();

  Faults() {
    if (const char* const rules = std::getenv("STANDIN_FAIL")) Arm(rules);
  }

  std::shared_mutex at_work_;
  std::mutex mutex_;
  std::map<std::string, Rule> rules_;
  std::atomic<int> sticky_{0};
};

}  // namespace standin
