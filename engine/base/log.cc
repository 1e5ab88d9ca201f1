// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdio>
#include <ctime>
#include <string>

namespace hvd {
namespace {

constexpr std::string_view kNames[] = {"TRACE: ", "DEBUG: ", "INFO: ", "WARNING: ", "ERROR: ", "FATAL: "};
constexpr int kPatienceMs = 1000;

// Return local time to the millisecond, followed by a space.
std::string TimeNow() {
  timespec now{};
  clock_gettime(CLOCK_REALTIME, &now);
  tm parts{};
  localtime_r(&now.tv_sec, &parts);
  char day[32], text[48];
  if (std::strftime(day, sizeof day, "%Y-%m-%d %H:%M:%S", &parts) == 0) return "";
  std::snprintf(text, sizeof text, "%s.%03d ", day, static_cast<int>(now.tv_nsec / 1000000));
  return text;
}

// Wait up to a second until `descriptor` takes output; return false if it does not. The line is then lost: if the
// engine waited longer, other ranks would consider this rank dead.
bool HasReader(int descriptor) {
  pollfd waiting{descriptor, POLLOUT, 0};
  int ready = poll(&waiting, 1, kPatienceMs);
  while (ready < 0 && errno == EINTR) ready = poll(&waiting, 1, kPatienceMs);
  return ready > 0;
}

// Write in parts of PIPE_BUF bytes, which a pipe that polls as writable takes without blocking. Errors are ignored,
// because there is nowhere to report them.
void WriteAll(int descriptor, std::string_view rest) {
  while (!rest.empty() && HasReader(descriptor)) {
    const ssize_t written = write(descriptor, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return;
    rest.remove_prefix(static_cast<size_t>(written));
  }
}

}  // namespace

Log::Log(const Identity& identity, const Settings& settings)
    : rank_(identity.rank),
      least_(static_cast<LogLevel>(settings.log_level)),
      hides_time_(settings.log_hide_time != 0) {}

void Log::Write(LogLevel level, std::string_view text) const { Put(level, kNames[static_cast<int>(level)], text); }

void Log::Put(LogLevel level, std::string_view name, std::string_view text) const {
  std::string line = hides_time_ ? "" : TimeNow();
  line += "[" + std::to_string(rank_) + "] [horovod] ";
  line.append(name).append(text).push_back('\n');
  WriteAll(level <= LogLevel::kInfo ? STDOUT_FILENO : STDERR_FILENO, line);
}

}  // namespace hvd
