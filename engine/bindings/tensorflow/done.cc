// SPDX-License-Identifier: Apache-2.0
#include "bindings/tensorflow/done.h"

#include <pthread.h>

namespace hvd::tensorflow {
namespace {

struct Stack {
  const char* begin = nullptr;
  size_t bytes = 0;
};

Stack FindStack() {
  Stack stack;
  pthread_attr_t attributes;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    void* begin = nullptr;
    pthread_attr_getstack(&attributes, &begin, &stack.bytes);
    stack.begin = static_cast<const char*>(begin);
    pthread_attr_destroy(&attributes);
  }
  return stack;
}

bool OnThisStack(const void* pointer) {
  static thread_local const Stack stack = FindStack();
  const char* byte = static_cast<const char*>(pointer);
  return stack.begin <= byte && byte < stack.begin + stack.bytes;
}

}  // namespace

// Up to TensorFlow 2.21, `callback` is the address of a std::function that is a parameter of the caller and is gone
// when compute_async returns, so it must be copied. From 2.22 on it is a heap object that TensorFlow itself deletes and
// that a copy would leak. Its address tells which case applies. This relies on the layout of libstdc++'s std::function.
Done::Done(TF_AsyncOpKernelDoneCallback* callback) : callback_(callback) {
  if (OnThisStack(callback)) {
    copy_ = std::make_unique<std::function<void()>>(*reinterpret_cast<std::function<void()>*>(callback));
  }
}

void Done::Run() {
  if (copy_) {
    (*copy_)();
  } else {
    Tf().TF_RunAsyncOpKernelDoneCallback(callback_);
  }
}

}  // namespace hvd::tensorflow
