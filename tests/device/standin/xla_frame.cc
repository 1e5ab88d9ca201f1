// SPDX-License-Identifier: Apache-2.0
// Stand-in for XLA on a GPU: builds a call frame as XLA's FFI does, and calls a handler with it.
#include <xla/ffi/api/c_api.h>

#include <cstring>
#include <string>
#include <vector>

struct XLA_FFI_ExecutionContext {
  void* stream;
};
struct XLA_FFI_Error {
  int code;
  std::string text;
};

namespace {

XLA_FFI_Error* CreateError(XLA_FFI_Error_Create_Args* args) { return new XLA_FFI_Error{args->errc, args->message}; }

void DestroyError(XLA_FFI_Error_Destroy_Args* args) { delete args->error; }

XLA_FFI_Error* GetStream(XLA_FFI_Stream_Get_Args* args) {
  if (!args->ctx->stream) return new XLA_FFI_Error{XLA_FFI_Error_Code_UNIMPLEMENTED, "there is no stream"};
  args->stream = args->ctx->stream;
  return nullptr;
}

const XLA_FFI_Api* Api() {
  static const XLA_FFI_Api* const api = [] {
    auto* const table = new XLA_FFI_Api{};
    table->struct_size = sizeof *table;
    table->api_version = {sizeof(XLA_FFI_Api_Version), nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    table->XLA_FFI_Error_Create = CreateError;
    table->XLA_FFI_Error_Destroy = DestroyError;
    table->XLA_FFI_Stream_Get = GetStream;
    return table;
  }();
  return api;
}

// Attributes of a call, in the form in which handlers read them.
class Attributes {
 public:
  void Add(const char* name, int64_t* value) { AddScalar(name, XLA_FFI_DataType_S64, value); }
  void Add(const char* name, double* value) { AddScalar(name, XLA_FFI_DataType_F64, value); }
  void Add(const char* name, const char* value) {
    Add(name, XLA_FFI_AttrType_STRING, new XLA_FFI_ByteSpan{value, std::strlen(value)});
  }
  ~Attributes() {
    for (XLA_FFI_ByteSpan* name : names_) delete name;
    for (size_t i = 0; i < values_.size(); ++i) {
      if (types_[i] == XLA_FFI_AttrType_STRING) {
        delete static_cast<XLA_FFI_ByteSpan*>(values_[i]);
      } else {
        delete static_cast<XLA_FFI_Scalar*>(values_[i]);
      }
    }
  }
  XLA_FFI_Attrs View() {
    return {sizeof(XLA_FFI_Attrs), nullptr,       static_cast<int64_t>(types_.size()),
            types_.data(),         names_.data(), values_.data()};
  }

 private:
  void AddScalar(const char* name, XLA_FFI_DataType dtype, void* value) {
    Add(name, XLA_FFI_AttrType_SCALAR, new XLA_FFI_Scalar{dtype, value});
  }
  void Add(const char* name, XLA_FFI_AttrType type, void* value) {
    types_.push_back(type);
    names_.push_back(new XLA_FFI_ByteSpan{name, std::strlen(name)});
    values_.push_back(value);
  }

  std::vector<XLA_FFI_AttrType> types_;
  std::vector<XLA_FFI_ByteSpan*> names_;
  std::vector<void*> values_;
};

}  // namespace

extern "C" {

struct StandinCall {
  int64_t context, kind, op, root, only_root;
  double prescale, postscale;
  const char* name;
  void* stream;
  int64_t count;
  const XLA_FFI_Buffer *inputs, *outputs;
};

// Call a handler. Return XLA's error code and write its text, or return 0 if there is no error.
int standin_xla_call(XLA_FFI_Handler* handler, StandinCall* call, char* text, size_t capacity) {
  Attributes attributes;
  attributes.Add("context", &call->context);
  attributes.Add("kind", &call->kind);
  attributes.Add("name", call->name);
  attributes.Add("only_root", &call->only_root);
  attributes.Add("op", &call->op);
  attributes.Add("postscale", &call->postscale);
  attributes.Add("prescale", &call->prescale);
  attributes.Add("root", &call->root);
  const auto count = static_cast<size_t>(call->count);
  std::vector<XLA_FFI_ArgType> arg_types(count, XLA_FFI_ArgType_BUFFER);
  std::vector<XLA_FFI_RetType> ret_types(count, XLA_FFI_RetType_BUFFER);
  std::vector<void*> args, rets;
  for (size_t i = 0; i < count; ++i) {
    args.push_back(const_cast<XLA_FFI_Buffer*>(call->inputs + i));
    rets.push_back(const_cast<XLA_FFI_Buffer*>(call->outputs + i));
  }
  XLA_FFI_ExecutionContext context{call->stream};
  XLA_FFI_CallFrame frame{};
  frame.struct_size = sizeof frame;
  frame.api = Api();
  frame.ctx = &context;
  frame.stage = XLA_FFI_ExecutionStage_EXECUTE;
  frame.args = {sizeof frame.args, nullptr, call->count, arg_types.data(), args.data()};
  frame.rets = {sizeof frame.rets, nullptr, call->count, ret_types.data(), rets.data()};
  frame.attrs = attributes.View();
  XLA_FFI_Error* const error = handler(&frame);
  if (!error) return frame.future ? -1 : 0;
  std::strncpy(text, error->text.c_str(), capacity - 1);
  const int code = error->code;
  delete error;
  return code;
}

// Return the handler's traits: whether XLA may replay its calls from a command buffer.
int standin_xla_traits(XLA_FFI_Handler* handler) {
  XLA_FFI_Metadata metadata{};
  metadata.struct_size = sizeof metadata;
  metadata.traits = ~0u;
  XLA_FFI_Metadata_Extension extension{};
  extension.extension_base = {sizeof extension, XLA_FFI_Extension_Metadata, nullptr};
  extension.metadata = &metadata;
  XLA_FFI_CallFrame frame{};
  frame.struct_size = sizeof frame;
  frame.extension_start = &extension.extension_base;
  handler(&frame);
  return static_cast<int>(metadata.traits);
}

}  // extern "C"
