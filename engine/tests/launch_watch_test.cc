// SPDX-License-Identifier: Apache-2.0
// An operation on the GPU that is not done in time is found, whatever was launched before and after it.
#include "devices/launch_watch.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <thread>

namespace {

using hvd::CudaEvent;
using hvd::Device;
using hvd::LaunchWatch;
using std::chrono::seconds;

// Stand-in for the CUDA driver, whose only stream finishes the n-th task when the test says so. An event remembers how
// many tasks precede it.
struct Driver {
  static inline std::atomic<int> put{0}, done{0};

  struct Event {
    int after = 0;
  };
  static Event* At(CudaEvent event) { return reinterpret_cast<Event*>(event); }

  static const hvd::Cuda* Table() {
    put = done = 0;
    static const hvd::Cuda table = [] {
      hvd::Cuda cuda;
      cuda.device_get = [](int* device, int) { return *device = 0; };
      cuda.device_name = [](char*, int, int) { return 0; };
      cuda.device_uuid = [](hvd::CudaUuid*, int) { return 0; };
      cuda.device_attribute = [](int*, int, int) { return 0; };
      cuda.context_retain = [](hvd::CudaContext*, int) { return 0; };
      cuda.context_release = [](int) { return 0; };
      cuda.context_push = [](hvd::CudaContext) { return 0; };
      cuda.context_pop = [](hvd::CudaContext*) { return 0; };
      cuda.capture_mode = [](int*) { return 0; };
      cuda.stream_priorities = [](int*, int*) { return 0; };
      cuda.stream_create = [](hvd::CudaStream*, unsigned, int) { return 0; };
      cuda.stream_destroy = [](hvd::CudaStream) { return 0; };
      cuda.event_create = [](CudaEvent* event, unsigned) {
        *event = reinterpret_cast<CudaEvent>(new Event);
        return 0;
      };
      cuda.event_destroy = [](CudaEvent event) {
        delete At(event);
        return 0;
      };
      cuda.event_record = [](CudaEvent event, hvd::CudaStream) {
        At(event)->after = put;
        return 0;
      };
      cuda.event_query = [](CudaEvent event) {
        return At(event)->after <= done ? int{hvd::kCudaSuccess} : int{hvd::kCudaNotReady};
      };
      return cuda;
    }();
    return &table;
  }
};

struct Gpu {
  Device device{Driver::Table(), 0};
  LaunchWatch watch;
  LaunchWatch::Clock::time_point now = LaunchWatch::Clock::now();

  void Launch(const char* name) {
    ++Driver::put;
    watch.Launched(&device, nullptr, name);
  }
};

TEST_CASE("nothing is overdue before it is launched, before its time, or once it is done") {
  Gpu gpu;
  CHECK(gpu.watch.Overdue(gpu.now + seconds(100), seconds(10)).empty());
  gpu.Launch("one");
  CHECK(gpu.watch.Overdue(gpu.now + seconds(5), seconds(10)).empty());
  CHECK(gpu.watch.Overdue(gpu.now + seconds(20), seconds(10)) == "one");
  Driver::done = 1;
  CHECK(gpu.watch.Overdue(gpu.now + seconds(20), seconds(10)).empty());
}

TEST_CASE("an operation that hangs behind others is found, also if nothing comes after it") {
  Gpu gpu;
  for (const char* const name : {"one", "two", "three"}) gpu.Launch(name);
  Driver::done = 2;
  CHECK(gpu.watch.Overdue(gpu.now + seconds(5), seconds(10)).empty());
  CHECK(gpu.watch.Overdue(gpu.now + seconds(20), seconds(10)) == "three");
  gpu.Launch("four");
  CHECK(gpu.watch.Overdue(gpu.now + seconds(20), seconds(10)) == "three");
  Driver::done = 3;
  CHECK(gpu.watch.Overdue(gpu.now + seconds(20), seconds(10)) == "four");
}

TEST_CASE("launches and looks may come from two threads") {
  Gpu gpu;
  std::atomic<bool> over{false};
  std::thread launcher([&] {
    for (int i = 0; i < 2000; ++i) {
      gpu.Launch("one of many");
      if (i % 3 == 0) Driver::done = i;
    }
    over = true;
  });
  while (!over) CHECK(gpu.watch.Overdue(LaunchWatch::Clock::now(), seconds(100)).empty());
  launcher.join();
  CHECK(gpu.watch.Overdue(gpu.now + seconds(300), seconds(100)) == "one of many");
  Driver::done = Driver::put.load();
  CHECK(gpu.watch.Overdue(gpu.now + seconds(300), seconds(100)).empty());
}

}  // namespace
