#include "graph/library_call.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <sstream>

#include "base/error.h"

namespace metroplex::graph {
namespace {

using c10::Argument;
using c10::FunctionSchema;
using c10::IValue;

template <class Visit>
void for_each_tensor(const IValue& value, const Visit& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& x : value.toTensorVector()) visit(x);
  } else if (value.isOptionalTensorList()) {
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector()) {
      if (x && x->defined()) visit(*x);
    }
  }
}

bool holds_tensors(const IValue& value) {
  return value.isTensor() || value.isTensorList() || value.isOptionalTensorList();
}

IValue weakened(const IValue& value) {
  if (value.isTensor()) return weak_alias(value.toTensor());
  if (value.isTensorList()) {
    c10::List<at::Tensor> list;
    for (const at::Tensor& x : value.toTensorVector()) list.push_back(weak_alias(x));
    return list;
  }
  if (value.isOptionalTensorList()) {
    c10::List<std::optional<at::Tensor>> list;
    for (const std::optional<at::Tensor>& x : value.toOptionalTensorVector())
      list.push_back(x && x->defined() ? std::optional(weak_alias(*x)) : std::nullopt);
    return list;
  }
  return value;
}

TapeScalar to_scalar(const std::string& name, const IValue& value) {
  if (value.isInt()) return {name, value.toInt()};
  if (value.isDouble()) return {name, value.toDouble()};
  std::ostringstream text;
  text << value;
  return {name, text.str()};
}

bool written(const Argument& argument) {
  return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
}

// True for in-place operators that do not read the previous values.
bool overwrites(const std::string& name) {
  static const std::vector<std::string> kNames{"aten::copy_",    "aten::zero_",      "aten::fill_",  "aten::normal_",
                                               "aten::uniform_", "aten::bernoulli_", "aten::random_"};
  return std::find(kNames.begin(), kNames.end(), name) != kNames.end();
}

bool shares_storage(const at::Tensor& x, const std::vector<IValue>& arguments) {
  bool shared = false;
  for (const IValue& argument : arguments)
    for_each_tensor(argument, [&](const at::Tensor& other) { shared = shared || x.is_alias_of(other); });
  return shared;
}

bool is_option(const std::string& name) {
  return name == "dtype" || name == "layout" || name == "device" || name == "pin_memory" || name == "memory_format";
}

// Maps the arguments of a call to those of the operator's out variant.
struct OutForm {
  c10::OperatorHandle op;
  std::vector<int> from;  // index of a call's argument, or -1 - k for result k
};

std::optional<std::vector<int>> mapped(const FunctionSchema& call, const FunctionSchema& out) {
  std::vector<int> from;
  std::vector<bool> used(call.arguments().size(), false);
  int results = 0;
  for (const Argument& argument : out.arguments()) {
    if (argument.is_out()) {
      from.push_back(-1 - results++);
      continue;
    }
    const auto same = std::find_if(call.arguments().begin(), call.arguments().end(), [&](const Argument& mine) {
      return mine.name() == argument.name() && *mine.type() == *argument.type();
    });
    if (same == call.arguments().end()) return std::nullopt;
    from.push_back(static_cast<int>(same - call.arguments().begin()));
    used[static_cast<size_t>(from.back())] = true;
  }
  if (results != static_cast<int>(call.returns().size())) return std::nullopt;
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i] && !is_option(call.arguments()[i].name())) return std::nullopt;
  }
  return from;
}

const std::multimap<std::string, c10::OperatorHandle>& out_forms() {
  static const auto* forms = [] {
    auto* all = new std::multimap<std::string, c10::OperatorHandle>;
    auto& dispatcher = c10::Dispatcher::singleton();
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto handle = dispatcher.findSchema(name);
      if (!handle) continue;
      const auto& arguments = handle->schema().arguments();
      if (!arguments.empty() && arguments.back().is_out()) all->emplace(name.name, *handle);
    }
    return all;
  }();
  return *forms;
}

std::optional<OutForm> out_form(const FunctionSchema& schema) {
  const auto [begin, end] = out_forms().equal_range(schema.name());
  for (auto form = begin; form != end; ++form) {
    if (const auto from = mapped(schema, form->second.schema())) return OutForm{form->second, *from};
  }
  return std::nullopt;
}

c10::OperatorHandle named(const char* name, const char* overload) {
  return c10::Dispatcher::singleton().findSchemaOrThrow(name, overload);
}

std::function<void()> called(const c10::OperatorHandle& op, std::vector<IValue> arguments) {
  return [op, arguments = std::move(arguments)] {
    torch::jit::Stack stack = arguments;
    op.callBoxed(&stack);
  };
}

// Replays plain copies and fills without a temporary.
std::function<void()> shortcut(const LibraryCall& call) {
  const std::string& name = call.op.schema().name();
  const auto out = [&] { return weakened(call.results.at(0)); };
  if (name == "aten::clone" || name == "aten::_to_copy") {
    static const c10::OperatorHandle copy = named("aten::copy_", "");
    return called(copy, {out(), weakened(call.arguments.at(0)), false});
  }
  if (name == "aten::zeros_like" || name == "aten::new_zeros" || name == "aten::zeros") {
    static const c10::OperatorHandle zero = named("aten::zero_", "");
    return called(zero, {out()});
  }
  return {};
}

}  // namespace

std::string name_of(const c10::OperatorHandle& op) {
  const std::string& overload = op.schema().overload_name();
  return overload.empty() ? op.schema().name() : op.schema().name() + "." + overload;
}

std::string unfit_for_graph(const c10::OperatorHandle& op) {
  if (op.hasTag(at::Tag::data_dependent_output)) return "the host reads a value of the device";
  if (op.hasTag(at::Tag::dynamic_output_shape))
    return "its shape follows from values of the device, which the host reads";
  for (const Argument& result : op.schema().returns()) {
    const c10::TypeKind kind = result.type()->kind();
    if (kind != c10::TypeKind::TensorType && kind != c10::TypeKind::ListType)
      return "the host gets a number from the device";
  }
  return "";
}

bool makes_views(const c10::OperatorHandle& op) {
  const std::vector<c10::Argument>& returns = op.schema().returns();
  return !returns.empty() && std::all_of(returns.begin(), returns.end(), [](const c10::Argument& result) {
    return result.alias_info() != nullptr && !result.alias_info()->isWrite();
  });
}

bool computes_nothing(const LibraryCall& call) {
  const FunctionSchema& schema = call.op.schema();
  if (schema.is_mutable()) return false;
  const std::string& name = schema.name();
  if (name == "aten::empty" || name == "aten::empty_like" || name == "aten::empty_strided" ||
      name == "aten::new_empty" || name == "aten::new_empty_strided" || name == "aten::empty_permuted")
    return true;
  bool fresh = false;
  for (const IValue& result : call.results) {
    if (!holds_tensors(result)) return false;
    for_each_tensor(result, [&](const at::Tensor& x) { fresh = fresh || !shares_storage(x, call.arguments); });
  }
  return !fresh;
}

bool reads_argument(const c10::OperatorHandle& op, size_t i) {
  const Argument& argument = op.schema().arguments()[i];
  return !written(argument) || !(argument.is_out() || (i == 0 && overwrites(op.schema().name())));
}

CallTensors find_tensors(const LibraryCall& call) {
  const FunctionSchema& schema = call.op.schema();
  CallTensors tensors;
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    const bool writes = written(schema.arguments()[i]), reads = reads_argument(call.op, i);
    for_each_tensor(call.arguments[i], [&](const at::Tensor& x) {
      if (reads) tensors.reads.push_back(x);
      if (writes) tensors.writes.push_back(x);
    });
  }
  if (schema.is_mutable()) return tensors;
  for (const IValue& result : call.results) {
    for_each_tensor(result, [&](const at::Tensor& x) {
      if (!shares_storage(x, call.arguments)) tensors.writes.push_back(x);
    });
  }
  return tensors;
}

TapeOperation make_operation(const LibraryCall& call) {
  TapeOperation operation;
  operation.name = name_of(call.op);
  operation.unfit = unfit_for_graph(call.op);
  for (size_t i = 0; i < call.arguments.size(); ++i) {
    if (!holds_tensors(call.arguments[i]))
      operation.scalars.push_back(to_scalar(call.op.schema().arguments()[i].name(), call.arguments[i]));
  }
  CallTensors tensors = find_tensors(call);
  operation.reads = std::move(tensors.reads);
  operation.writes = std::move(tensors.writes);
  return operation;
}

std::function<void()> repeated(const LibraryCall& call) {
  const FunctionSchema& schema = call.op.schema();
  std::vector<IValue> arguments;
  if (!schema.is_mutable()) {
    if (auto run = shortcut(call)) return run;
    if (const auto form = out_form(schema)) {
      for (const int from : form->from)
        arguments.push_back(weakened(from >= 0 ? call.arguments[static_cast<size_t>(from)]
                                               : call.results[static_cast<size_t>(-1 - from)]));
      return called(form->op, std::move(arguments));
    }
  }
  for (const IValue& argument : call.arguments) arguments.push_back(weakened(argument));
  if (schema.is_mutable()) return called(call.op, std::move(arguments));
  std::vector<at::Tensor> results;
  for (const IValue& result : call.results)
    for_each_tensor(result, [&](const at::Tensor& x) { results.push_back(weak_alias(x)); });
  return [op = call.op, arguments = std::move(arguments), results = std::move(results)] {
    torch::jit::Stack stack = arguments;
    op.callBoxed(&stack);
    size_t next = 0;
    for (const IValue& result : stack) {
      for_each_tensor(result, [&](const at::Tensor& x) {
        const at::Tensor& to = results.at(next++);
        if (x.const_data_ptr() != to.const_data_ptr()) to.copy_(x);
      });
    }
  };
}

}  // namespace metroplex::graph
