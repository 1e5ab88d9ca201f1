// SPDX-License-Identifier: Apache-2.0
// Modules and kernels of the stand-in: the engine's own kernels, compiled for the processor.
#include "driver.h"
#include "kernels.h"

using namespace standin;

extern "C" {

int cuModuleLoadData(Module** module, const char* image) {
  ENTER("cuModuleLoadData");
  if (std::strncmp(image, ".version ", 9) != 0 || !std::strstr(image, "\n.target sm_")) return kInvalidPtx;
  *module = new Module;
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  Driver::Get().modules.insert(*module);
  return kSuccess;
}

int cuModuleUnload(Module* module) {
  ENTER("cuModuleUnload");
  std::lock_guard<std::mutex> lock(Driver::Get().mutex);
  if (!Driver::Get().modules.erase(module)) return kInvalidHandle;
  delete module;
  return kSuccess;
}

int cuModuleGetFunction(const Kernel** function, Module*, const char* name) {
  ENTER("cuModuleGetFunction");
  const auto found = standin::Kernels().find(name);
  if (found == standin::Kernels().end()) return kNotFound;
  *function = &found->second;
  return kSuccess;
}

int cuLaunchKernel(const Kernel* kernel, unsigned blocks, unsigned, unsigned, unsigned threads, unsigned, unsigned,
                   unsigned, void* stream, void** parameters, void**) {
  ENTER("cuLaunchKernel");
  Stream* const on = StreamOf(stream);
  if (!IsAlive(on) || on->device() != TheContext()->device) return kInvalidHandle;
  const auto* const begin = static_cast<const char*>(parameters[0]);
  const uint64_t all = static_cast<uint64_t>(blocks) * threads;
  on->Put(
      [kernel, all, task = std::vector<char>(begin, begin + kernel->task_bytes)] { kernel->run(task.data(), all); });
  return kSuccess;
}

}  // extern "C"
