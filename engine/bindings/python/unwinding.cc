// SPDX-License-Identifier: Apache-2.0
// personality.cc stops threads that Python ends inside this module. Frameworks also have functions that must not be
// left by unwinding, in libraries that share one C++ runtime. So once the program is exiting, a handler of that
// runtime's std::terminate stops their threads too.
#include "bindings/python/unwinding.h"

#include <dlfcn.h>
#include <pthread.h>
#include <unistd.h>

namespace {

using Handler = void (*)();

pthread_t ending;  // the thread that runs the exit of the program
Handler handler_before = nullptr;

// Stop this thread if the interpreter is exiting. Python counts as uninitialised once it begins to end other threads.
void StayOrTerminate() {
  while (!pthread_equal(ending, pthread_self()) && !Py_IsInitialized()) pause();
  handler_before();
}

void KeepThreadsOfFrameworks() {
  if (handler_before) return;
  void* const library = dlopen("libstdc++.so.6", RTLD_LAZY | RTLD_NOLOAD);
  if (!library) return;
  const auto set_handler = reinterpret_cast<Handler (*)(Handler)>(dlsym(library, "_ZSt13set_terminatePFvvE"));
  const auto handler = reinterpret_cast<Handler (*)()>(dlsym(library, "_ZSt13get_terminatev"));
  if (!set_handler || !handler || !handler()) return;
  ending = pthread_self();
  handler_before = handler();
  set_handler(StayOrTerminate);
}

}  // namespace

namespace hvd_python {

void BindUnwinding(nanobind::module_& module) { module.def("keep_threads_of_frameworks", &KeepThreadsOfFrameworks); }

}  // namespace hvd_python
