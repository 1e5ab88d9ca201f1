// SPDX-License-Identifier: Apache-2.0
// C++ access to XLA's call frame: attributes by name, buffers and errors. Uses only the C header of the FFI, version
// 0.1.
#pragma once

#include <xla/ffi/api/c_api.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace hvd::xla {

inline XLA_FFI_Error* MakeError(const XLA_FFI_Api* api, XLA_FFI_Error_Code code, const std::string& text) {
  XLA_FFI_Error_Create_Args args{};
  args.struct_size = sizeof args;
  args.message = text.c_str();
  args.errc = code;
  return api->XLA_FFI_Error_Create(&args);
}

// Return true if there was an error, and destroy it.
inline bool Discard(const XLA_FFI_Api* api, XLA_FFI_Error* error) {
  if (!error) return false;
  XLA_FFI_Error_Destroy_Args args{};
  args.struct_size = sizeof args;
  args.error = error;
  api->XLA_FFI_Error_Destroy(&args);
  return true;
}

class Frame {
 public:
  explicit Frame(XLA_FFI_CallFrame* frame) : frame_(frame) {}

  const XLA_FFI_Api* api() const { return frame_->api; }
  XLA_FFI_ExecutionContext* context() const { return frame_->ctx; }
  int64_t args() const { return frame_->args.size; }
  int64_t rets() const { return frame_->rets.size; }
  const XLA_FFI_Buffer& arg(int64_t i) const { return *static_cast<const XLA_FFI_Buffer*>(frame_->args.args[i]); }
  const XLA_FFI_Buffer& ret(int64_t i) const { return *static_cast<const XLA_FFI_Buffer*>(frame_->rets.rets[i]); }
  void set_future(XLA_FFI_Future* future) { frame_->future = future; }

  int64_t Integer(const char* name) const {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(Find(name, XLA_FFI_AttrType_SCALAR));
    return scalar && scalar->dtype == XLA_FFI_DataType_S64 ? *static_cast<const int64_t*>(scalar->value) : 0;
  }
  double Real(const char* name) const {
    const auto* scalar = static_cast<const XLA_FFI_Scalar*>(Find(name, XLA_FFI_AttrType_SCALAR));
    return scalar && scalar->dtype == XLA_FFI_DataType_F64 ? *static_cast<const double*>(scalar->value) : 1.0;
  }
  std::string_view Text(const char* name) const {
    const auto* span = static_cast<const XLA_FFI_ByteSpan*>(Find(name, XLA_FFI_AttrType_STRING));
    return span ? std::string_view(span->ptr, span->len) : std::string_view();
  }

  // Get the stream of the device on which XLA runs the program, or return an error.
  XLA_FFI_Error* Stream(void** stream) const {
    XLA_FFI_Stream_Get_Args args{};
    args.struct_size = sizeof args;
    args.ctx = context();
    if (XLA_FFI_Error* error = api()->XLA_FFI_Stream_Get(&args)) return error;
    *stream = args.stream;
    return nullptr;
  }

  XLA_FFI_Error* Error(XLA_FFI_Error_Code code, const std::string& text) const { return MakeError(api(), code, text); }

  // Answer XLA's query for the handler's version, which it sends before the first use, in a frame without other
  // contents. Newer runtimes tell their version; returning that keeps this library usable when their oldest accepted
  // version rises.
  bool AnswerMetadata() const {
    XLA_FFI_Extension_Base* extension = frame_->extension_start;
    if (!extension || extension->type != XLA_FFI_Extension_Metadata) return false;
    XLA_FFI_Metadata* metadata = reinterpret_cast<XLA_FFI_Metadata_Extension*>(extension)->metadata;
    XLA_FFI_Api_Version version{};
    version.struct_size = sizeof version;
    version.major_version = XLA_FFI_API_MAJOR;
    version.minor_version = XLA_FFI_API_MINOR;
    metadata->api_version = frame_->api ? frame_->api->api_version : version;
    metadata->traits = 0;
    return true;
  }

 private:
  const void* Find(const char* name, XLA_FFI_AttrType type) const {
    const XLA_FFI_Attrs& attrs = frame_->attrs;
    for (int64_t i = 0; i < attrs.size; ++i) {
      if (attrs.types[i] == type && std::string_view(attrs.names[i]->ptr, attrs.names[i]->len) == name) {
        return attrs.attrs[i];
      }
    }
    return nullptr;
  }

  XLA_FFI_CallFrame* frame_;
};

}  // namespace hvd::xla
