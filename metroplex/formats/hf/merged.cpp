#include "hf/merged.h"

#include <cmath>

#include "base/error.h"
#include "files/convert_dtype.h"
#include "files/safetensors.h"

namespace metroplex::hf {
namespace {

using checkpoint::Dims;
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

// The inverse of adapter_row().
int64_t layer_row(const config::AdapterBox& box, int64_t of_box) {
  return of_box / box.size * box.width + box.begin + of_box % box.size;
}

double length(const double* values, int64_t count) {
  double squares = 0;
  for (int64_t i = 0; i < count; ++i) squares += values[i] * values[i];
  return std::sqrt(squares);
}

}  // namespace

std::vector<double> read_full_values(checkpoint::TensorSource& run, const std::string& name) {
  const char* const kind = run.find(name, "main") != nullptr ? "main" : "weight";
  const files::TensorForm* const form = run.find(name, kind);
  MPX_CHECK(form != nullptr, "checkpoint", "'", run.directory(), "' has no ", name,
            "; convert a complete checkpoint");
  const std::vector<int64_t> start(form->shape.size(), 0);
  std::vector<std::byte> bytes(files::tensor_bytes(form->dtype, {form->shape.begin(), form->shape.end()}, name));
  run.fill({name, kind, form->shape, start, form->shape, form->dtype, bytes.data()});
  return to_double(form->dtype, bytes);
}

MergedWeights::MergedWeights(checkpoint::TensorSource& run, const config::Config& config)
    : TensorSource(run.directory()), run_(run) {
  for (const files::TensorForm& tensor : run.tensors()) {
    if (tensor.kind == "weight" && tensor.name.ends_with(config::kLoraA))
      add_adapter(config, config::adapted_module(tensor.name));
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

void MergedWeights::add_adapter(const config::Config& config, const std::string& module) {
  const auto place = config::adapter_place(config.model, module);
  MPX_CHECK(place && config.peft.lora(), "checkpoint", "'", run_.directory(), "': ", module,
            " has an adapter, but the model in its config has no layer for it; convert a complete checkpoint");
  const files::TensorForm* const weight = run_.find(place->linear + ".weight", "weight");
  const int64_t rank = config.peft.rank(module), rows = place->box.rows();
  const auto has_shape = [&](const char* suffix, Dims shape) {  // one for each expert of a stack
    if (weight->shape.size() == 3) shape.insert(shape.begin(), weight->shape[0]);
    const files::TensorForm* const form = run_.find(module + suffix, "weight");
    return form != nullptr && form->shape == shape;
  };
  const bool matrices = weight != nullptr && (weight->shape.size() == 2 || weight->shape.size() == 3);
  MPX_CHECK(matrices && has_shape(config::kLoraA, {rank, weight->shape.back()}) &&
                has_shape(config::kLoraB, {rows, rank}) &&
                (!config.peft.use_dora || has_shape(config::kLoraMagnitude, {rows})),
            "checkpoint", "'", run_.directory(), "': the adapter of ", module, " does not have the sizes that ",
            place->linear, " and rank ", rank,
            " in section peft of its config require; convert a complete checkpoint");
  adapters_[place->linear + ".weight"].push_back(
      {module, place->box, config.peft.scale(module), config.peft.use_dora});
}

// Whole rows are merged, because DoRA needs their lengths.
void MergedWeights::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  const files::TensorForm& form = tensors()[tensor];
  const auto adapted = adapters_.find(form.name);
  const files::TensorForm* const own = run_.find(form.name, form.kind);
  const files::TensorForm& stored = own != nullptr ? *own : *run_.find(form.name, "weight");
  const auto fill = [&](const checkpoint::Piece& piece, void* to) {
    run_.fill(
        {form.name, stored.kind, form.shape, piece.offset, piece.size, stored.dtype, to, piece.begin, piece.end});
  };
  if (adapted == adapters_.end()) return fill(region, data);
  for (const checkpoint::Piece& box : checkpoint::split_into_boxes(region)) {
    Dims offset = box.offset, size = box.size;
    offset.back() = 0, size.back() = form.shape.back();
    const checkpoint::Piece rows = checkpoint::box_piece(offset, size);
    std::vector<std::byte> bytes(static_cast<size_t>(rows.count()) * dtype_bytes(stored.dtype));
    fill(rows, bytes.data());
    std::vector<double> values = to_double(stored.dtype, bytes);
    for (const Adapter& adapter : adapted->second) merge(adapter, rows, values);
    bytes.resize(values.size() * dtype_bytes(form.dtype));
    files::convert_elements(Dtype::kF64, reinterpret_cast<const std::byte*>(values.data()), form.dtype, bytes.data(),
                            values.size());
    checkpoint::copy_overlap(rows, bytes.data(), region, data, static_cast<int64_t>(dtype_bytes(form.dtype)));
  }
}

void MergedWeights::merge(const Adapter& adapter, const checkpoint::Piece& rows, std::vector<double>& values) {
  const std::vector<double> a = read_full_values(run_, adapter.module + config::kLoraA),
                            b = read_full_values(run_, adapter.module + config::kLoraB),
                            magnitude = adapter.dora ? read_full_values(run_, adapter.module + config::kLoraMagnitude)
                                                     : std::vector<double>();
  const bool stack = rows.size.size() == 3;
  const int64_t columns = rows.size.back(), in_matrix = rows.size[stack ? 1 : 0], out = adapter.box.rows();
  const int64_t rank = run_.find(adapter.module + config::kLoraB, "weight")->shape.back();
  for (int64_t i = 0; i < rows.count() / columns; ++i) {
    const int64_t expert = stack ? rows.offset[0] + i / in_matrix : 0;
    const int64_t of_box = adapter_row(adapter.box, rows.offset[stack ? 1 : 0] + i % in_matrix);
    if (of_box < 0) continue;
    double* const row = values.data() + i * columns;
    for (int64_t k = 0; k < rank; ++k) {
      const double factor = adapter.scale * b[static_cast<size_t>((expert * out + of_box) * rank + k)];
      const double* const from = a.data() + (expert * rank + k) * columns;
      for (int64_t c = 0; c < columns; ++c) row[c] += factor * from[c];
    }
    if (!adapter.dora) continue;
    const double factor = magnitude[static_cast<size_t>(of_box)] / length(row, columns);
    for (int64_t c = 0; c < columns; ++c) row[c] *= factor;
  }
}

static config::Config without_dora(config::Config config) {
  config.peft.use_dora = false;
  return config;
}

DoraWeights::DoraWeights(TensorSource& source, const config::Config& config)
    : TensorSource(source.directory()), source_(source), merged_(source, without_dora(config)) {
  for (const files::TensorForm& tensor : source_.tensors()) {
    add(tensor);
    if (tensor.kind != "weight" || tensor.shape.size() != 2 || !tensor.name.ends_with(".weight")) continue;
    const std::string linear = tensor.name.substr(0, tensor.name.rfind('.'));
    for (const std::string& word : config::adapter_words(config.model)) {
      const std::string module = config::adapter_module(linear, word);
      const auto place = config::adapter_place(config.model, module);
      if (!place || place->linear != linear || !config.peft.adapts(module) ||
          source_.find(module + config::kLoraMagnitude, "weight") != nullptr)
        continue;
      lengths_.emplace(module + config::kLoraMagnitude, *place);
    }
  }
  for (const auto& [name, place] : lengths_) add({name, "weight", Dtype::kF32, {place.box.rows()}});
}

void DoraWeights::read(size_t tensor, const checkpoint::Piece& region, void* data) {
  const files::TensorForm& form = tensors()[tensor];
  const auto found = lengths_.find(form.name);
  if (found == lengths_.end()) {
    return source_.fill(
        {form.name, form.kind, form.shape, region.offset, region.size, form.dtype, data, region.begin, region.end});
  }
  const std::string name = found->second.linear + ".weight";
  const char* const kind = merged_.find(name, "main") != nullptr ? "main" : "weight";
  const files::TensorForm& weight = *merged_.find(name, kind);
  const int64_t columns = weight.shape.at(1);
  std::vector<std::byte> bytes(static_cast<size_t>(columns) * dtype_bytes(weight.dtype));
  for (int64_t i = region.begin; i < region.end; ++i) {
    const int64_t row = layer_row(found->second.box, region.offset[0] + i);
    merged_.fill({name, kind, weight.shape, {row, 0}, {1, columns}, weight.dtype, bytes.data()});
    static_cast<float*>(data)[i - region.begin] =
        static_cast<float>(length(to_double(weight.dtype, bytes).data(), columns));
  }
}

}  // namespace metroplex::hf
