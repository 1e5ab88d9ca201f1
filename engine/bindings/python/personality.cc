// SPDX-License-Identifier: Apache-2.0
// Threads that Python ends inside this module. Until Python 3.13, an interpreter that exits ends each thread that
// requests the GIL by pthread_exit, which unwinds the thread's stack. In this module that would reach functions that
// must not be left by unwinding (every entry of nanobind, every destructor), and so abort the process. Before that it
// would release Python objects without the GIL. So such a thread stops and stays until the process ends, as threads do
// from Python 3.14 on.
//
// The unwinder calls the personality routine of each function that has something to release or must not be left,
// before it unwinds that function. All functions of this module use the routine below (--wrap in
// engine/CMakeLists.txt). This works wherever Python may be called, and costs nothing unless a thread is ended.
#include <unistd.h>
#include <unwind.h>

extern "C" {

_Unwind_Reason_Code __real___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class type,
                                                _Unwind_Exception* exception, _Unwind_Context* context);

_Unwind_Reason_Code __wrap___gxx_personality_v0(int version, _Unwind_Action actions, _Unwind_Exception_Class type,
                                                _Unwind_Exception* exception, _Unwind_Context* context) {
  // Stop the thread. Only the end of a thread is a forced unwinding; exceptions are not.
  while (actions & _UA_FORCE_UNWIND) pause();
  return __real___gxx_personality_v0(version, actions, type, exception, context);
}

}  // extern "C"
