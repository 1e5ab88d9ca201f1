// SPDX-License-Identifier: Apache-2.0
// The timeline without an engine: a file that is complete at any time, slices that nest whatever event is missing, and
// the queue.
#include <doctest/doctest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "tests/repeats.h"
#include "tracing/timeline.h"

using hvd::Moment;
using hvd::OpKind;
using hvd::Trace;
using hvd::TraceFile;
using What = hvd::Moment::What;

namespace {

class TemporaryFile {
 public:
  TemporaryFile() {
    char name[] = "/tmp/hvd-timeline-XXXXXX";
    close(mkstemp(name));
    path = name;
  }
  ~TemporaryFile() { std::remove(path.c_str()); }
  std::string Read() const {
    std::stringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  }
  std::string path;
};

// Strict JSON parser that only validates.
class Json {
 public:
  static bool Valid(const std::string& text) {
    Json json(text);
    return json.Value() && (json.Space(), json.at_ == text.size());
  }

 private:
  explicit Json(const std::string& text) : text_(text) {}
  void Space() {
    while (at_ < text_.size() && std::string(" \n\r\t").find(text_[at_]) != std::string::npos) ++at_;
  }
  bool Take(char wanted) {
    Space();
    if (at_ >= text_.size() || text_[at_] != wanted) return false;
    return ++at_, true;
  }
  bool String() {
    if (!Take('"')) return false;
    for (; at_ < text_.size() && text_[at_] != '"'; ++at_) {
      if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
      if (text_[at_] != '\\') continue;
      if (++at_ >= text_.size() || std::string("\"\\/bfnrtu").find(text_[at_]) == std::string::npos) return false;
    }
    return Take('"');
  }
  bool Number() {
    const size_t from = at_;
    while (at_ < text_.size() && std::string("-0123456789.").find(text_[at_]) != std::string::npos) ++at_;
    return at_ > from;
  }
  bool Several(char end, bool keyed) {
    if (Take(end)) return true;
    do {
      if (keyed && !(String() && Take(':'))) return false;
      if (!Value()) return false;
    } while (Take(','));
    return Take(end);
  }
  bool Value() {
    if (Take('[')) return Several(']', false);
    if (Take('{')) return Several('}', true);
    Space();
    if (text_.compare(at_, 4, "true") == 0) return at_ += 4, true;
    return text_[at_] == '"' ? String() : Number();
  }
  const std::string& text_;
  size_t at_ = 0;
};

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

Moment Make(What what, const std::string& name, int64_t time_ns, int rank = 0) {
  Moment moment;
  moment.what = what;
  moment.time_ns = time_ns;
  moment.rank = rank;
  moment.text = "SHM";
  moment.dimensions = 2;
  moment.shape[0] = 3;
  moment.shape[1] = 4;
  moment.SetName(name);
  return moment;
}

// Return the phases of the events in `text` except metadata, by process: "BXXEBE".
std::map<int, std::string> Phases(const std::string& text) {
  std::map<int, std::string> phases;
  for (const std::string& line : Lines(text)) {
    char phase = 0;
    int pid = 0;
    if (std::sscanf(line.c_str(), "{\"ph\":\"%c\",\"pid\":%d", &phase, &pid) == 2 && phase != 'M') phases[pid] += phase;
  }
  return phases;
}

bool Nests(const std::string& phases) {
  int depth = 0;
  for (char phase : phases) {
    depth += phase == 'B' ? 1 : phase == 'E' ? -1 : 0;
    if (depth < 0) return false;
  }
  return depth == 0;
}

}  // namespace

TEST_CASE("timeline: the file is a complete array after every write, and no event crosses a page") {
  TemporaryFile temporary;
  TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  CHECK(Json::Valid(temporary.Read()));
  std::mt19937 random(1);
  for (int write = 0; write < 40; ++write) {
    for (unsigned i = random() % 30; i > 0; --i) file.Add("{\"name\":\"" + std::string(random() % 900, 'x') + "\"}");
    REQUIRE(file.Flush().ok());
    CHECK(Json::Valid(temporary.Read()));
  }
  const std::string text = temporary.Read();
  size_t events = 0;
  for (size_t begin = text.find('{'); begin != std::string::npos; begin = text.find('{', begin + 1), ++events) {
    CHECK(begin / TraceFile::kPage == text.find('}', begin) / TraceFile::kPage);
  }
  CHECK(events > 300);
  // A process killed between two pages leaves whole events, in an array that only lacks its end.
  for (size_t cut = TraceFile::kPage; cut < text.size(); cut += TraceFile::kPage) {
    CHECK(Json::Valid(text.substr(0, cut) + "]"));
  }
}

TEST_CASE("timeline: a file that cannot grow is complete with what has found room") {
  TemporaryFile temporary;
  TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  file.Add("{\"name\":\"kept\"}");
  REQUIRE(file.Flush().ok());
  rlimit limit;
  getrlimit(RLIMIT_FSIZE, &limit);
  auto* old = std::signal(SIGXFSZ, SIG_IGN);
  const rlimit small{10000, limit.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  for (int i = 0; i < 1000; ++i) file.Add("{\"name\":\"lost\"}");
  const hvd::Status status = file.Flush();
  setrlimit(RLIMIT_FSIZE, &limit);
  std::signal(SIGXFSZ, old);
  CHECK_FALSE(status.ok());
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  CHECK(text.find("kept") != std::string::npos);
  CHECK(text.size() <= 10000);
  CHECK(text.size() > 10000 - TraceFile::kPage);
}

TEST_CASE("timeline: what cannot be written is refused with the path and the reason") {
  for (const char* path : {"/dev/full", "/proc/nowhere/file", "/"}) {
    hvd::Timeline timeline(0);
    const hvd::Status status = timeline.Start(path, false);
    CHECK(status.code == hvd::Code::kFailed);
    CHECK(status.text.find(path) != std::string::npos);
    CHECK_FALSE(timeline.on());
  }
}

TEST_CASE("timeline: strings of any bytes become valid JSON") {
  const auto quoted = [](std::string_view text) {
    std::string out;
    hvd::AppendJsonString(text, &out);
    return out;
  };
  CHECK(quoted("a\"b\\c") == "\"a\\\"b\\\\c\"");
  CHECK(quoted("\n\x7f\x01") == "\"\\u000a\\u007f\\u0001\"");
  CHECK(quoted("h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80") == "\"h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x98\x80\"");
  // Truncated, overlong encodings, a surrogate, beyond Unicode, a stray continuation byte.
  for (const char* bad : {"\xc3", "\xe4\xb8", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80", "\x80"}) {
    CHECK(quoted(bad).find("\\ufffd") == 1);
    CHECK(quoted(bad).find_first_not_of("\\ufd", 1) == quoted(bad).size() - 1);
  }
}

TEST_CASE("timeline: long names are cut between characters and still differ") {
  Moment one, other;
  std::string wide = "a";
  for (int i = 0; i < 5000; ++i) wide += "\xc3\xa9";
  one.SetName(wide + "1");
  other.SetName(wide + "2");
  const std::string first(one.name, one.name_size), second(other.name, other.name_size);
  CHECK(first != second);
  CHECK(first.size() <= Moment::kMostName);
  std::string out;
  hvd::AppendJsonString(first, &out);
  CHECK(out.find("ufffd") == std::string::npos);
  one.SetName(std::string(Moment::kMostName, 'x'));
  CHECK(one.name_size == Moment::kMostName);
}

TEST_CASE("timeline: one allreduce") {
  TemporaryFile temporary;
  TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  Trace trace(&file, 7, 1000, 123456789);
  trace.Add(Make(What::kReady, "x", 999, 1));  // older than the start of the trace
  trace.Add(Make(What::kReady, "x", 2000, 1));
  trace.Add(Make(What::kReady, "x", 3500, 0));
  trace.Add(Make(What::kAgreed, "x", 4000));
  trace.Add(Make(What::kTransfer, "x", 4100));
  trace.Add(Make(What::kReady, "x", 4500, 1));  // a fast rank that has begun its next step
  trace.Add(Make(What::kDone, "x", 5000));
  trace.Finish(9000);
  REQUIRE(file.Flush().ok());
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  const std::string expected = R"([
{"ph":"M","pid":0,"tid":1,"name":"process_name","args":{"name":"rank 7","rank":7,"start_time_since_epoch_in_micros":123456789}},
{"ph":"M","pid":0,"tid":1,"name":"process_sort_index","args":{"sort_index":0}},
{"ph":"M","pid":1,"tid":1,"name":"process_name","args":{"name":"x"}},
{"ph":"M","pid":1,"tid":1,"name":"process_sort_index","args":{"sort_index":1}},
{"ph":"B","pid":1,"tid":1,"ts":1.000,"name":"NEGOTIATE_ALLREDUCE"},
{"ph":"X","pid":1,"tid":1,"ts":1.000,"name":"1","dur":0},
{"ph":"X","pid":1,"tid":1,"ts":2.500,"name":"0","dur":0},
{"ph":"E","pid":1,"tid":1,"ts":3.000},
{"ph":"B","pid":1,"tid":1,"ts":3.000,"name":"ALLREDUCE"},
{"ph":"B","pid":1,"tid":1,"ts":3.100,"name":"SHM_ALLREDUCE"},
{"ph":"E","pid":1,"tid":1,"ts":4.000},
{"ph":"E","pid":1,"tid":1,"ts":4.000,"args":{"dtype":"float32","shape":"[3, 4]"}},
{"ph":"B","pid":1,"tid":1,"ts":4.000,"name":"NEGOTIATE_ALLREDUCE"},
{"ph":"X","pid":1,"tid":1,"ts":4.000,"name":"1","dur":0},
{"ph":"E","pid":1,"tid":1,"ts":8.000}
]
)";
  CHECK(text == expected);
}

TEST_CASE("timeline: no slice takes no time, or viewers would see its end before its beginning") {
  TemporaryFile temporary;
  TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  Trace trace(&file, 0, 0, 0);
  for (What what : {What::kReady, What::kAgreed, What::kTransfer, What::kDone}) trace.Add(Make(what, "x", 5000));
  trace.Add(Make(What::kReady, "x", 5000));
  REQUIRE(file.Flush().ok());
  std::vector<double> open, times;
  for (const std::string& line : Lines(temporary.Read())) {
    char phase = 0;
    double time = 0;
    if (std::sscanf(line.c_str(), "{\"ph\":\"%c\",\"pid\":1,\"tid\":1,\"ts\":%lf", &phase, &time) != 2) continue;
    if (phase == 'B') open.push_back(time);
    if (phase == 'E') {
      CHECK(time > open.back());
      open.pop_back();
    }
    CHECK((times.empty() || time >= times.back()));
    times.push_back(time);
  }
  CHECK(times.size() == 9);
}

TEST_CASE("timeline: slices nest whatever moments are missing") {
  const std::vector<What> all = {What::kReady, What::kAgreed, What::kActivity, What::kTransfer,
                                 What::kDone,  What::kFailed, What::kLeft,     What::kCycle};
  for (unsigned seed = 0; seed < 50; ++seed) {
    TemporaryFile temporary;
    TraceFile file;
    REQUIRE(file.Open(temporary.path).ok());
    Trace trace(&file, 0, 0, 0);
    std::mt19937 random(seed);
    const char* names[] = {"x", "y", "allreduce.noname.3"};
    for (int i = 0; i < 300; ++i) trace.Add(Make(all[random() % all.size()], names[random() % 3], i, i % 4));
    trace.Finish(300);
    REQUIRE(file.Flush().ok());
    const std::string text = temporary.Read();
    CHECK(Json::Valid(text));
    for (const auto& [pid, phases] : Phases(text)) CHECK_MESSAGE(Nests(phases), phases);
  }
}

TEST_CASE("timeline: what was dropped is told in the order of time") {
  TemporaryFile temporary;
  hvd::TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  hvd::Trace trace(&file, 0, 0, 0);
  trace.Add(Make(What::kReady, "x", 5000, 0));
  trace.AddDropped(3);
  trace.Add(Make(What::kReady, "x", 6000, 1));
  REQUIRE(file.Flush().ok());
  CHECK(temporary.Read().find("\"ts\":5.000,\"name\":\"dropped moments\"") != std::string::npos);
}

TEST_CASE("timeline: a full queue drops and counts, and never waits") {
  TemporaryFile temporary;
  hvd::Timeline timeline(0, 4);
  REQUIRE(timeline.Start(temporary.path, false).ok());
  hvd::Request request;
  request.name = "x";
  constexpr int kMany = 50000;
  for (int i = 0; i < kMany; ++i) timeline.Ready(0, request, i);
  timeline.Stop();
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  CHECK(timeline.dropped() > 0);
  const std::string phases = Phases(text)[1];
  const auto shown = static_cast<uint64_t>(std::count(phases.begin(), phases.end(), 'X'));
  CHECK(shown + timeline.dropped() == kMany);
  CHECK(text.find("\"dropped moments\",\"args\":{\"count\":" + std::to_string(timeline.dropped())) !=
        std::string::npos);
}

TEST_CASE("timeline: started and stopped while the engine is at work") {
  TemporaryFile temporary;
  hvd::Timeline timeline(0, 64);
  std::atomic<bool> stop{false};
  std::thread driver([&] {
    hvd::Request request;
    request.name = "x";
    request.shape = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10};
    while (!stop) {
      if (timeline.on()) timeline.Cycle();
      if (timeline.on()) timeline.Ready(0, request, 0);
      if (timeline.on()) timeline.Finished(0, request, true);
    }
  });
  for (int round = 0; round < 30; ++round) {
    REQUIRE(timeline.Start(temporary.path, round % 2).ok());
    std::this_thread::yield();
    timeline.Stop();
    const std::string text = temporary.Read();
    CHECK(Json::Valid(text));
    for (const auto& [pid, phases] : Phases(text)) CHECK(Nests(phases));
  }
  stop = true;
  driver.join();
}

TEST_CASE("timeline: started by several threads at once, of which the last one counts") {
  TemporaryFile temporary;
  hvd::Timeline timeline(0, 64);
  for (unsigned round = 0; round < hvd::Repeats(50); ++round) {
    std::vector<std::thread> threads;
    for (int i = 0; i < 3; ++i) threads.emplace_back([&] { CHECK(timeline.Start(temporary.path, false).ok()); });
    for (std::thread& thread : threads) thread.join();
    CHECK(timeline.on());
    timeline.Stop();
    CHECK(Json::Valid(temporary.Read()));
  }
}

TEST_CASE("timeline: what the program did itself is one complete event, from any thread") {
  TemporaryFile temporary;
  hvd::Timeline timeline(0, 64);
  timeline.Show("early", 1, 2);  // ignored while the timeline is off
  REQUIRE(timeline.Start(temporary.path, false).ok());
  const int64_t later = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  std::thread other([&] { timeline.Show("a \"commit\"", later, later + 1500); });
  other.join();
  timeline.Show("before the file", 1, 2);
  timeline.Stop();
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  CHECK(text.find("\"name\":\"a \\\"commit\\\"\",\"dur\":1.500}") != std::string::npos);
  CHECK(text.find("\"args\":{\"name\":\"(program)\"") != std::string::npos);
  CHECK(text.find("early") == std::string::npos);
  CHECK(text.find("before the file") == std::string::npos);
}

TEST_CASE("timeline: byte counters have an event when they have changed, and none without a meaning") {
  TemporaryFile temporary;
  TraceFile file;
  REQUIRE(file.Open(temporary.path).ok());
  Trace trace(&file, 0, 1000, 0);
  hvd::TrafficSums sums;
  trace.Add(sums, 2000);
  sums.data_sent = 5;
  sums.control_received = 7;
  trace.Add(sums, 3000);
  trace.Add(sums, 4000);
  sums.data_received = 6;
  sums.memory_read = 8;
  trace.Add(sums, 5000);
  sums.data_is_known = false;
  sums.data_sent = 9;
  trace.Add(sums, 6000);
  REQUIRE(file.Flush().ok());
  std::vector<std::string> counters;
  for (const std::string& line : Lines(temporary.Read())) {
    const size_t at = line.find("\"ts\"");
    if (at != std::string::npos) counters.push_back(line.substr(at, line.rfind('}') + 1 - at));
  }
  CHECK(counters == std::vector<std::string>{
                        R"("ts":2.000,"name":"data bytes","args":{"sent":5,"received":0}})",
                        R"("ts":2.000,"name":"control bytes","args":{"sent":0,"received":7}})",
                        R"("ts":4.000,"name":"data bytes","args":{"sent":5,"received":6}})",
                        R"("ts":4.000,"name":"shared memory bytes","args":{"read":8,"written":0}})",
                    });
}

TEST_CASE("timeline: counters that grow are read while they do, and once more at the end") {
  TemporaryFile temporary;
  hvd::Traffic traffic;
  hvd::Timeline timeline(0);
  timeline.CountBytesOf(&traffic);
  REQUIRE(timeline.Start(temporary.path, false).ok());
  traffic.memory_written.Add(41);
  traffic.memory_written.Add(1);
  timeline.Stop();
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  CHECK(text.find("\"args\":{\"name\":\"(bytes)\"}}") != std::string::npos);
  CHECK(text.find(R"("name":"shared memory bytes","args":{"read":0,"written":42}})") != std::string::npos);
  CHECK(text.find("data bytes") == std::string::npos);
}

TEST_CASE("timeline: spans that nobody has written yet are bounded, and those beyond are counted") {
  TemporaryFile temporary;
  hvd::Timeline timeline(0, 64);
  REQUIRE(timeline.Start(temporary.path, false).ok());
  const int64_t now = std::chrono::steady_clock::now().time_since_epoch() / std::chrono::nanoseconds(1);
  constexpr uint64_t kMany = 100000;
  for (uint64_t i = 0; i < kMany; ++i) timeline.Show("x", now, now);
  timeline.Stop();
  const std::string text = temporary.Read();
  CHECK(Json::Valid(text));
  const std::string phases = Phases(text)[1];
  CHECK(static_cast<uint64_t>(std::count(phases.begin(), phases.end(), 'X')) + timeline.dropped() == kMany);
}
