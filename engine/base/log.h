// SPDX-License-Identifier: Apache-2.0
// Log lines with time, rank and level. Each line is a single write (up to 4 KB), so that lines of ranks that share a
// terminal or a file do not mix. As in Horovod, levels up to INFO go to stdout and the others to stderr.
#pragma once

#include <string_view>

#include "base/config.h"

namespace hvd {

// The values are in the order of HOROVOD_LOG_LEVEL's names.
enum class LogLevel : int { kTrace, kDebug, kInfo, kWarning, kError, kFatal };

// Logger of one rank. It is immutable, so each thread may use its own copy.
class Log {
 public:
  Log() = default;
  Log(const Identity& identity, const Settings& settings);

  bool Takes(LogLevel level) const { return level >= least_; }
  void Warn(std::string_view text) const {
    if (Takes(LogLevel::kWarning)) Write(LogLevel::kWarning, text);
  }
  // `text` is a function, so that the text is built only if its level is logged.
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
  // Log a warning that another rank sent, without a level before it, because the sender has formatted it.
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
