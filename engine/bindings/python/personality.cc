// SPDX-License-Identifier: Apache-2.0
// Threads that Python ends inside this module. Until Python 3.13 an interpreter that is ending ends each thread that
// asks for the GIL by pthread_exit, which unwinds its stack. Here that meets functions that nothing may leave by
// unwinding (every entry of nanobind, every destructor), which takes the process down by SIGABRT, and on its way there
// it would release Python's objects without the GIL. So such a thread stays where it is, and goes with the process, as
// from Python 3.14 on.
//
// The unwinder asks the personality routine, once for each function that has something to release or that must not be
// left, before it touches that function. All of this module's functions have the one below (--wrap in
// engine/CMakeLists.txt). It holds wherever Python may be called, and costs nothing while no thread is ended.
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class type,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class type,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  // Only the end of a thread is forced; exceptions are not.
  while (actions & _UA_FORCE_UNWIND) pause();
  return __real___gxx_personality_v0(version, actions, type, exception, context);
}

}  // extern "C"
