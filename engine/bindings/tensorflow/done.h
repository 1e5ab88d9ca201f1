// SPDX-License-Identifier: Apache-2.0
// How TensorFlow hears that an asynchronous operation is over, whenever that is and on whichever thread.
#pragma once

#include <functional>
#include <memory>

#include "bindings/tensorflow/c_api.h"

namespace hvd::tensorflow {

class Done {
 public:
  // Inside compute_async, with what TensorFlow passed.
  explicit Done(TF_AsyncOpKernelDoneCallback* callback);
  // Once. TensorFlow may free everything that belongs to the operation before this returns.
  void Run();

 private:
  TF_AsyncOpKernelDoneCallback* callback_;
  std::unique_ptr<std::function<void()>> copy_;
};

}  // namespace hvd::tensorflow
