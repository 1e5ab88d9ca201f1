// SPDX-License-Identifier: Apache-2.0
#include "base/log.h"

#include <doctest/doctest.h>
#include <fcntl.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <functional>
#include <regex>
#include <string>
#include <thread>
#include <vector>

namespace {

using hvd::Log;
using hvd::LogLevel;

// Return what `body` writes to a descriptor of this process.
std::string Captured(int descriptor, const std::function<void()>& body) {
  std::FILE* file = std::tmpfile();
  REQUIRE(file);
  const int before = dup(descriptor);
  dup2(fileno(file), descriptor);
  body();
  dup2(before, descriptor);
  close(before);
  std::string text(static_cast<size_t>(lseek(fileno(file), 0, SEEK_END)), 0);
  REQUIRE(pread(fileno(file), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
  std::fclose(file);
  return text;
}

Log LogOf(int rank, LogLevel level, bool hides_time) {
  hvd::Identity identity;
  identity.rank = rank;
  hvd::Settings settings;
  settings.log_level = static_cast<int32_t>(level);
  settings.log_hide_time = hides_time;
  return Log(identity, settings);
}

struct Written {
  std::string out, err;
};

Written SayAll(const Log& log) {
  Written written;
  written.err = Captured(2, [&] {
    written.out = Captured(1, [&] {
      log.Trace([] { return "a"; });
      log.Debug([] { return "b"; });
      log.Info([] { return "c"; });
      log.Warn("d");
      log.Relay("WARNING: e");
    });
  });
  return written;
}

}  // namespace

TEST_CASE("log: a level lets through itself and what is worse, to stdout or stderr") {
  const Written all = SayAll(LogOf(3, LogLevel::kTrace, true));
  CHECK(all.out == "[3] [horovod] TRACE: a\n[3] [horovod] DEBUG: b\n[3] [horovod] INFO: c\n");
  CHECK(all.err == "[3] [horovod] WARNING: d\n[3] [horovod] WARNING: e\n");
  const Written some = SayAll(LogOf(0, LogLevel::kInfo, true));
  CHECK(some.out == "[0] [horovod] INFO: c\n");
  CHECK(some.err == "[0] [horovod] WARNING: d\n[0] [horovod] WARNING: e\n");
  const Written none = SayAll(LogOf(0, LogLevel::kError, true));
  CHECK(none.out + none.err == "");
}

TEST_CASE("log: warnings by default, with the time") {
  const Log usual = Log(hvd::Identity(), hvd::Settings());
  CHECK(SayAll(usual).out == "");
  const std::string text = Captured(2, [&] { usual.Warn("x"); });
  const std::regex line(R"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3} \[0\] \[horovod\] WARNING: x\n)");
  CHECK_MESSAGE(std::regex_match(text, line), text);
}

TEST_CASE("log: what is not wanted is not made") {
  int made = 0;
  Log().Debug([&] { return std::to_string(++made); });
  CHECK(made == 0);
}

TEST_CASE("log: nobody who does not read keeps the engine waiting for long") {
  int ends[2];
  REQUIRE(pipe2(ends, O_CLOEXEC | O_NONBLOCK) == 0);
  while (write(ends[1], "x", 1) == 1) {
  }
  fcntl(ends[1], F_SETFL, 0);  // the pipe is full, so that the next write blocks
  const int before = dup(2);
  dup2(ends[1], 2);
  const auto start = std::chrono::steady_clock::now();
  Log().Warn("lost");
  const auto waited = std::chrono::steady_clock::now() - start;
  dup2(before, 2);
  for (int descriptor : {before, ends[0], ends[1]}) close(descriptor);
  CHECK(waited > std::chrono::milliseconds(500));
  CHECK(waited < std::chrono::seconds(20));
}

TEST_CASE("log: lines of several threads do not mix") {
  constexpr int kThreads = 4, kLines = 200;
  const Log log = LogOf(0, LogLevel::kWarning, true);
  const std::string text = Captured(2, [&] {
    std::vector<std::thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back([&, t] {
        for (int i = 0; i < kLines; ++i) log.Warn(std::string(300, static_cast<char>('a' + t)));
      });
    }
    for (std::thread& thread : threads) thread.join();
  });
  const std::string start = "[0] [horovod] WARNING: ";
  const size_t length = start.size() + 300 + 1;
  REQUIRE(text.size() == length * kThreads * kLines);
  for (size_t at = 0; at < text.size(); at += length) {
    REQUIRE(text.compare(at, start.size(), start) == 0);
    REQUIRE(text.find_first_not_of(text[at + start.size()], at + start.size()) == at + length - 1);
  }
}
