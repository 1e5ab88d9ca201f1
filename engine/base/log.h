// SPDX-License-Identifier: Apache-2.0
// What the engine tells its user: lines with time, rank and level. Each is one write (up to 4 KB), so that lines of
// ranks that share a terminal or a file do not mix. As in Horovod, what is no more than information goes to stdout and
// the rest to stderr.
#pragma once

#include <string_view>

#include "base/config.h"

namespace hvd {

enum class LogLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };  // as HOROVOD_LOG_LEVEL counts them

// Never changes, so that any thread may use its own copy.
class Log {
 public:
  Log() = default;
  Log(const Identity& identity, const Settings& settings);

  bool Takes(LogLevel level) const { return level >= least_; }
  void Warn(std::string_view text) const {
    if (Takes(LogLevel::kWarning)) Write(LogLevel::kWarning, text);
  }
  // `text` is a function: what is seldom asked for is made only then.
  template <typename Text>
  void Info(Text text) const {
    if (Takes(LogLevel::kInfo)) Write(LogLevel::kInfo, text());
  }
  template <typename Text>
  void Debug(Text text) const {
    if (Takes(LogLevel::kDebug)) Write(LogLevel::kDebug, text());
  }
  template <typename Text>
  void Trace(Text text) const {
    if (Takes(LogLevel::kTrace)) Write(LogLevel::kTrace, text());
  }
  // A warning as another rank worded it: without a level's name before it.
  void Relay(std::string_view text) const {
    if (Takes(LogLevel::kWarning)) Put(LogLevel::kWarning, "", text);
  }

 private:
  void Write(LogLevel level, std::string_view text) const;
  void Put(LogLevel level, std::string_view name, std::string_view text) const;

  int rank_ = 0;
  LogLevel least_ = LogLevel::kWarning;
  bool hides_time_ = false;
};

}  // namespace hvd
