// SPDX-License-Identifier: Apache-2.0
// Completion of an asynchronous TensorFlow operation, at any time and on any thread.
#pragma once

#include <functional>
#include <memory>

#include "bindings/tensorflow/c_api.h"

namespace hvd::tensorflow {

class Done {
 public:
  // Construct inside compute_async, with the callback that TensorFlow passes.
  explicit Done(TF_AsyncOpKernelDoneCallback* callback);
  // Inform TensorFlow; call once. TensorFlow may free everything that belongs to the operation before this returns.
  void Run();

 private:
  TF_AsyncOpKernelDoneCallback* callback_;
  std::unique_ptr<std::function<void()>> copy_;
};

}  // namespace hvd::tensorflow
