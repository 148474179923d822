#include "hf/merged.h"

#include "base/error.h"
#include "files/convert_dtype.h"

namespace metroplex::hf {
namespace {

using files::Dtype;

size_t dtype_bytes(Dtype dtype) { return static_cast<size_t>(files::dtype_bits(dtype) / 8); }

std::vector<double> to_double(Dtype dtype, const std::vector<std::byte>& bytes) {
  std::vector<double> values(bytes.size() / dtype_bytes(dtype));
  files::convert_elements(dtype, bytes.data(), Dtype::kF64, reinterpret_cast<std::byte*>(values.data()),
                          values.size());
  return values;
}

// Returns the row of the adapter's output for row `row` of the layer's output; -1 if there is none.
int64_t adapter_row(const config::AdapterBox& box, int64_t row) {
  const int64_t group = row / box.width, inside = row % box.width - box.begin;
  return inside >= 0 && inside < box.size ? group * box.size + inside : -1;
}

}  // namespace

std::vector<double> read_full_values(checkpoint::Reader& run, const std::string& name) {
  const char* const kind = run.find(name, "main") != nullptr ? "main" : "weight";
  const files::TensorForm* const form = run.find(name, kind);
  MPX_CHECK(form != nullptr, "checkpoint", "'", run.directory(), "' has no ", name);
  const std::vector<int64_t> start(form->shape.size(), 0);
  std::vector<std::byte> bytes(files::tensor_bytes(form->dtype, {form->shape.begin(), form->shape.end()}, name));
  run.fill({name, kind, form->shape, start, form->shape, form->dtype, bytes.data()});
  return to_double(form->dtype, bytes);
}

MergedWeights::MergedWeights(checkpoint::Reader& run, const config::Config& config)
    : TensorSource(run.directory()), run_(run), scale_(config.peft.lora() ? config.peft.lora_scale() : 1) {
  for (const files::TensorForm& tensor : run.tensors()) {
    if (tensor.kind != "weight" || !tensor.name.ends_with(config::kLoraA)) continue;
    const std::string module = config::adapted_module(tensor.name);
    const auto place = config::adapter_place(config.model, module);
    MPX_CHECK(place && config.peft.lora(), "checkpoint", "'", run.directory(), "': ", tensor.name,
              " is an adapter, but the model in its config has no layer for it");
    const files::TensorForm* const form = run.find(module + config::kLoraB, "weight");
    const files::TensorForm* const weight = run.find(place->linear + ".weight", "weight");
    const int64_t rank = config.peft.lora_rank;
    const bool whole = form != nullptr && weight != nullptr && weight->shape.size() == 2;
    const std::vector<int64_t> of_a{rank, whole ? weight->shape[1] : 0}, of_b{place->box.rows(), rank};
    MPX_CHECK(whole && tensor.shape == of_a && form->shape == of_b, "checkpoint", "'", run.directory(),
              "': ", tensor.name, " and its lora_B do not have the sizes that ", place->linear,
              " and peft.lora_rank = ", rank, " in its config require");
    adapters_[place->linear + ".weight"].push_back({module, place->box});
  }
  for (const files::TensorForm& tensor : run.tensors()) {
    if (config::is_adapter(tensor.name)) continue;
    add(tensor);
    const bool adapted = tensor.kind == "weight" && adapters_.contains(tensor.name);
    if (!adapted || tensor.dtype == Dtype::kF64 || tensor.dtype == Dtype::kF32 ||
        run.find(tensor.name, "main") != nullptr)
      continue;
    add({tensor.name, "main", Dtype::kF32, tensor.shape});
  }
}

void MergedWeights::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  const files::TensorForm& form = tensors()[tensor];
  const auto adapted = adapters_.find(form.name);
  const files::TensorForm* const own = run_.find(form.name, form.kind);
  const files::TensorForm& stored = own != nullptr ? *own : *run_.find(form.name, "weight");
  const auto fill = [&](void* to) {
    run_.fill(
        {form.name, stored.kind, form.shape, region.offset, region.size, stored.dtype, to, region.begin, region.end});
  };
  if (adapted == adapters_.end()) return fill(data);
  std::vector<std::byte> bytes(static_cast<size_t>(region.count()) * dtype_bytes(stored.dtype));
  fill(bytes.data());
  std::vector<double> values = to_double(stored.dtype, bytes);
  const int64_t columns = form.shape.at(1), box_columns = region.size.at(1);
  for (const auto& [module, box] : adapted->second) {
    const std::vector<double> a = read_full_values(run_, module + config::kLoraA),
                              b = read_full_values(run_, module + config::kLoraB);
    const auto rank = static_cast<int64_t>(a.size()) / columns;
    for (int64_t i = region.begin; i < region.end;) {
      const int64_t row = region.offset[0] + i / box_columns, first = i % box_columns;
      const int64_t count = std::min(box_columns - first, region.end - i);
      if (const int64_t of_box = adapter_row(box, row); of_box >= 0) {
        double* const out = values.data() + (i - region.begin);
        for (int64_t k = 0; k < rank; ++k) {
          const double factor = scale_ * b[static_cast<size_t>(of_box * rank + k)];
          const double* const from = a.data() + k * columns + region.offset[1] + first;
          for (int64_t c = 0; c < count; ++c) out[c] += factor * from[c];
        }
      }
      i += count;
    }
  }
  files::convert_elements(Dtype::kF64, reinterpret_cast<const std::byte*>(values.data()), form.dtype,
                          static_cast<std::byte*>(data), values.size());
}

}  // namespace metroplex::hf
