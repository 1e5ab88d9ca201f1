// SPDX-License-Identifier: Apache-2.0
// State of the stand-in for the CUDA driver in one process, and ENTER, with which each of its functions begins. It is
// strict where hardware often forgives: the current context, the device of streams and events, freed memory, and work
// that is not done yet. It has two devices, which reach each other's memory.
#pragma once

#include <cstdio>
#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "faults.h"
#include "shared.h"
#include "streams.h"

namespace standin {

using Address = unsigned long long;
constexpr int kDevices = 2;
enum Result : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kAlreadyRegistered = 712,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kInvalidDevice = 101,
  kInvalidContext = 201,
  kPeerUnsupported = 217,
  kInvalidPtx = 218,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kCapturing = 900,
};

enum : int { kMpsEnabled = 133 };

struct Uuid {
  char bytes[16];
};
struct Context {
  int device = 0;
  int users = 0;
  Stream* null_stream = nullptr;
};
struct Module {};

struct Driver {
  std::mutex mutex;  // guards the members below
  bool initialized = false;
  Context contexts[kDevices];
  std::map<Address, std::shared_ptr<Shared>> memory, mapped;
  std::set<void*> host, registered;
  std::set<const Event*> events;
  std::set<const Stream*> streams;
  std::set<const Module*> modules;

  static Driver& Get() {
    static Driver* const driver = new Driver;  // never destroyed, because threads may still run at the end
    return *driver;
  }
};

inline std::vector<Context*>& Current() {
  static thread_local std::vector<Context*> contexts;
  return contexts;
}
inline Context* TheContext() { return Current().empty() ? nullptr : Current().back(); }

// Return the id of a device. It is equal in all processes, unless STANDIN_UUID names the process's device.
inline Uuid UuidOf(int device) {
  Uuid uuid{};
  const char* const text = std::getenv("STANDIN_UUID");
  std::snprintf(uuid.bytes, sizeof uuid.bytes, "%.13s/%d", text ? text : "stand-in", device);
  return uuid;
}

inline int Enter(const char* function, bool needs_context = true) {
  if (const int result = Faults::Get().Enter(function)) return result;
  if (!Driver::Get().initialized) return kNotInitialized;
  return needs_context && !TheContext() ? kInvalidContext : kSuccess;
}

inline Stream* StreamOf(void* stream) {
  if (stream) return static_cast<Stream*>(stream);
  Context* const context = TheContext();
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!context->null_stream) context->null_stream = new Stream(context->device);
  return context->null_stream;
}

inline bool IsAlive(const Stream* stream) {
  Driver& driver = Driver::Get();
  std::lock_guard<std::mutex> lock(driver.mutex);
  return driver.streams.count(stream) || stream == driver.contexts[stream->device()].null_stream;
}

inline bool IsAlive(const Event* event) {
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  return Driver::Get().events.count(event) != 0;
}

// Wait for all work of this process. Freeing memory does so, as in the real driver.
inline void WaitForAll() {
  Driver& driver = Driver::Get();
  std::vector<std::shared_ptr<Stream::Queue>> all;  // shared, because another thread may destroy the streams meanwhile
  {
    std::lock_guard<std::mutex> lock(driver.mutex);
    for (const Stream* stream : driver.streams) all.push_back(stream->queue());
    for (const Context& context : driver.contexts) {
      if (context.null_stream) all.push_back(context.null_stream->queue());
    }
  }
  for (const auto& queue : all) queue->Wait();
}

}  // namespace standin

#define ENTER(function) \
  if (const int refused = standin::Enter(function)) return refused
#define ENTER_ANYWHERE(function) \
  if (const int refused = standin::Enter(function, false)) return refused
