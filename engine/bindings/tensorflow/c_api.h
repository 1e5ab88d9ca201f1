// SPDX-License-Identifier: Apache-2.0
// Part of TensorFlow's C interface that the operations need. It is declared here and looked up in the loaded
// TensorFlow, so that the build does not need TensorFlow and one build serves every version.
#pragma once

#include <cstddef>
#include <cstdint>

struct TF_AsyncOpKernelDoneCallback;
struct TF_KernelBuilder;
struct TF_OpDefinitionBuilder;
struct TF_OpKernelConstruction;
struct TF_OpKernelContext;
struct TF_ShapeHandle;
struct TF_ShapeInferenceContext;
struct TF_Status;
struct TF_Tensor;

namespace hvd::tensorflow {

struct StringView {
  const char* data;
  size_t size;
};

// Values of TF_Code.
enum Code { kOk = 0, kUnknown = 2, kInvalidArgument = 3, kFailedPrecondition = 9 };

// Values of TF_DataType.
enum DataType {
  kFloat = 1,
  kDouble = 2,
  kInt32 = 3,
  kUint8 = 4,
  kInt16 = 5,
  kInt8 = 6,
  kInt64 = 9,
  kBool = 10,
  kBfloat16 = 14,
  kUint16 = 17,
  kHalf = 19,
  kUint32 = 22,
  kUint64 = 23,
  kFloat8E5M2 = 24,
  kFloat8E4M3FN = 25
};

using CreateKernel = void* (*)(TF_OpKernelConstruction*);
using DeleteKernel = void (*)(void* kernel);
using Compute = void (*)(void* kernel, TF_OpKernelContext*);
using ComputeAsync = void (*)(void* kernel, TF_OpKernelContext*, TF_AsyncOpKernelDoneCallback*);
using InferShape = void (*)(TF_ShapeInferenceContext*, TF_Status*);

// One line for each function: return type, name, parameters.
#define HVD_TENSORFLOW_FUNCTIONS(F)                                                                                    \
  F(TF_Status*, TF_NewStatus, ())                                                                                      \
  F(void, TF_DeleteStatus, (TF_Status*))                                                                               \
  F(void, TF_SetStatus, (TF_Status*, int code, const char* text))                                                      \
  F(int, TF_GetCode, (const TF_Status*))                                                                               \
  F(const char*, TF_Message, (const TF_Status*))                                                                       \
  F(TF_OpDefinitionBuilder*, TF_NewOpDefinitionBuilder, (const char* type))                                            \
  F(void, TF_OpDefinitionBuilderAddAttr, (TF_OpDefinitionBuilder*, const char*))                                       \
  F(void, TF_OpDefinitionBuilderAddInput, (TF_OpDefinitionBuilder*, const char*))                                      \
  F(void, TF_OpDefinitionBuilderAddOutput, (TF_OpDefinitionBuilder*, const char*))                                     \
  F(void, TF_OpDefinitionBuilderSetIsStateful, (TF_OpDefinitionBuilder*, bool))                                        \
  F(void, TF_OpDefinitionBuilderSetShapeInferenceFunction, (TF_OpDefinitionBuilder*, InferShape))                      \
  F(void, TF_RegisterOpDefinition, (TF_OpDefinitionBuilder*, TF_Status*))                                              \
  F(int64_t, TF_ShapeInferenceContextNumInputs, (TF_ShapeInferenceContext*))                                           \
  F(TF_ShapeHandle*, TF_NewShapeHandle, ())                                                                            \
  F(void, TF_DeleteShapeHandle, (TF_ShapeHandle*))                                                                     \
  F(void, TF_ShapeInferenceContextGetInput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))             \
  F(void, TF_ShapeInferenceContextSetOutput, (TF_ShapeInferenceContext*, int, TF_ShapeHandle*, TF_Status*))            \
  F(TF_ShapeHandle*, TF_ShapeInferenceContextScalar, (TF_ShapeInferenceContext*))                                      \
  F(TF_ShapeHandle*, TF_ShapeInferenceContextVectorFromSize, (TF_ShapeInferenceContext*, size_t))                      \
  F(int64_t, TF_ShapeInferenceContextRank, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                               \
  F(int, TF_ShapeInferenceContextRankKnown, (TF_ShapeInferenceContext*, TF_ShapeHandle*))                              \
  F(void, TF_ShapeInferenceContextSubshape,                                                                            \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, int64_t start, int64_t end, TF_ShapeHandle*, TF_Status*))             \
  F(void, TF_ShapeInferenceContextConcatenateShapes,                                                                   \
    (TF_ShapeInferenceContext*, TF_ShapeHandle*, TF_ShapeHandle*, TF_ShapeHandle*, TF_Status*))                        \
  F(TF_KernelBuilder*, TF_NewKernelBuilder,                                                                            \
    (const char* type, const char* device, CreateKernel, Compute, DeleteKernel))                                       \
  F(TF_KernelBuilder*, TF_NewAsyncKernelBuilder,                                                                       \
    (const char* type, const char* device, CreateKernel, ComputeAsync, DeleteKernel))                                  \
  F(void, TF_RegisterKernelBuilder, (const char* name, TF_KernelBuilder*, TF_Status*))                                 \
  F(StringView, TF_OpKernelConstruction_GetName, (TF_OpKernelConstruction*))                                           \
  F(void, TF_OpKernelConstruction_GetAttrSize,                                                                         \
    (TF_OpKernelConstruction*, const char*, int32_t* list_size, int32_t* total_size, TF_Status*))                      \
  F(void, TF_OpKernelConstruction_GetAttrInt64, (TF_OpKernelConstruction*, const char*, int64_t*, TF_Status*))         \
  F(void, TF_OpKernelConstruction_GetAttrBool, (TF_OpKernelConstruction*, const char*, unsigned char*, TF_Status*))    \
  F(void, TF_OpKernelConstruction_GetAttrString,                                                                       \
    (TF_OpKernelConstruction*, const char*, char*, size_t max_length, TF_Status*))                                     \
  F(int, TF_NumInputs, (TF_OpKernelContext*))                                                                          \
  F(void, TF_GetInput, (TF_OpKernelContext*, int, TF_Tensor**, TF_Status*))                                            \
  F(int64_t, TF_GetIterId, (TF_OpKernelContext*))                                                                      \
  F(TF_Tensor*, TF_AllocateOutput,                                                                                     \
    (TF_OpKernelContext*, int, int type, const int64_t* dims, int ndim, size_t bytes, TF_Status*))                     \
  F(TF_Tensor*, TF_ForwardInputOrAllocateOutput,                                                                       \
    (TF_OpKernelContext*, const int* candidates, int count, int output, const int64_t* dims, int ndim, int* forwarded, \
     TF_Status*))                                                                                                      \
  F(void, TF_OpKernelContext_Failure, (TF_OpKernelContext*, TF_Status*))                                               \
  F(void, TF_RunAsyncOpKernelDoneCallback, (TF_AsyncOpKernelDoneCallback*))                                            \
  F(int, TF_TensorType, (const TF_Tensor*))                                                                            \
  F(int, TF_NumDims, (const TF_Tensor*))                                                                               \
  F(int64_t, TF_Dim, (const TF_Tensor*, int))                                                                          \
  F(size_t, TF_TensorByteSize, (const TF_Tensor*))                                                                     \
  F(void*, TF_TensorData, (const TF_Tensor*))                                                                          \
  F(void, TF_DeleteTensor, (TF_Tensor*))

struct Library {
#define HVD_DECLARE(result, name, parameters) result(*name) parameters = nullptr;
  HVD_TENSORFLOW_FUNCTIONS(HVD_DECLARE)
#undef HVD_DECLARE
  const char* missing = nullptr;  // name of a function that this TensorFlow lacks
};

// Return the TensorFlow of this process; the first call looks it up.
const Library& Tf();

// TF_Status that is deleted at the end of the scope.
class Status {
 public:
  Status() : status_(Tf().TF_NewStatus()) {}
  Status(int code, const char* text) : Status() { Tf().TF_SetStatus(status_, code, text); }
  ~Status() { Tf().TF_DeleteStatus(status_); }
  Status(const Status&) = delete;
  Status& operator=(const Status&) = delete;

  TF_Status* get() const { return status_; }
  bool ok() const { return Tf().TF_GetCode(status_) == kOk; }
  const char* text() const { return Tf().TF_Message(status_); }

 private:
  TF_Status* status_;
};

}  // namespace hvd::tensorflow
