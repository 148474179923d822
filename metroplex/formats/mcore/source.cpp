#include "mcore/source.h"

#include <algorithm>
#include <set>

#include "base/error.h"
#include "files/convert_dtype.h"
#include "mcore/shards.h"

namespace metroplex::mcore {
namespace {

std::string some(const std::vector<std::string>& lines) {
  constexpr size_t kMost = 12;
  std::string text;
  for (size_t i = 0; i < std::min(lines.size(), kMost); ++i) text += "\n  " + lines[i];
  return text + (lines.size() > kMost ? base::concat("\n  and ", lines.size() - kMost, " more") : "");
}

// Tied weights, rotary frequencies and statistics, which a model does not load.
bool is_redundant(const std::string& name) {
  return name == "output_layer.weight" || name.ends_with("rotary_pos_emb.inv_freq") ||
         name.ends_with("tokens_per_expert") || name.find("_extra_state") != std::string::npos;
}

// The box of the stored tensor that has the elements of a box of ours.
checkpoint::Piece stored_box(const Part& part, const Dims& offset, const Dims& size) {
  Dims stored_offset = part.index, stored_size(part.index.size(), 1);
  for (size_t dim = part.dropped; dim < offset.size(); ++dim) {
    stored_offset.push_back(offset[dim] - part.offset[dim]);
    stored_size.push_back(size[dim]);
  }
  return checkpoint::box_piece(stored_offset, stored_size);
}

// Computes the overlap of a box with a part; returns false if they are disjoint.
bool overlap(const checkpoint::Piece& box, const Part& part, Dims& offset, Dims& size) {
  offset.resize(box.offset.size()), size.resize(box.offset.size());
  for (size_t dim = 0; dim < offset.size(); ++dim) {
    offset[dim] = std::max(box.offset[dim], part.offset[dim]);
    size[dim] = std::min(box.offset[dim] + box.size[dim], part.offset[dim] + part.size[dim]) - offset[dim];
    if (size[dim] <= 0) return false;
  }
  return true;
}

}  // namespace

Source::Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
               const Wanted& wanted)
    : TensorSource(directory), disk_(disk), contents_(read_contents(disk, directory)) {
  check_size(model);
  const std::vector<MappedTensor> mapped = map_tensors(model);
  // In fp32, the distributed optimizer also stores main parameters, which equal the weights.
  const bool half = is_true(contents_.arguments, "bf16") || is_true(contents_.arguments, "fp16");
  std::vector<std::string> problems;
  for (const MappedTensor& tensor : mapped) {
    if (wanted && !wanted(tensor.name)) continue;
    add_tensor(tensor, tensor.kind, problems);
    for (const char* kind : kStateKinds) {
      if (half || kind != std::string("main")) add_tensor(tensor, kind, problems);
    }
  }
  check_unknown(mapped, problems);
  MPX_CHECK(problems.empty(), "checkpoint", "'", directory,
            "' does not contain the weights of the model in its args:", some(problems),
            "\ncopy the checkpoint of all ranks again; with other keys of section model, set them as in its args");
}

// Bounds the allocations that depend on these sizes: each entry needs at least one stored element.
void Source::check_size(const config::Model& model) const {
  const auto words = contents_.tensors.find("embedding.word_embeddings.weight");
  if (words != contents_.tensors.end() && !words->second.shape.empty())
    MPX_CHECK(
        model.vocab_size <= words->second.shape[0], "checkpoint", "model.vocab_size = ", model.vocab_size,
        ": must be at most the ", words->second.shape[0], " rows of the word embeddings in '", directory(),
        "'; lower it, or convert the checkpoint to a Hugging Face directory first, to which model.from adds rows");
  int64_t elements = 0;
  for (const auto& [name, tensor] : contents_.tensors) {
    for (const Chunk& chunk : tensor.chunks) elements += chunk.piece().count();
  }
  const int64_t entries = std::max({model.num_moe_experts, model.mtp_num_layers, int64_t{1}});
  MPX_CHECK(model.num_layers <= elements / entries, "checkpoint", "'", directory(), "': args has ", model.num_layers,
            " layers and ", model.num_moe_experts, " experts, but there are only ", elements,
            " stored weights; copy the checkpoint of all ranks again");
}

// Optimizer state may be missing. Older versions of Megatron store it in flat shards, which are not read.
void Source::add_tensor(const MappedTensor& tensor, const std::string& kind, std::vector<std::string>& problems) {
  const bool is_state = kind != tensor.kind;
  std::vector<Part> parts = find_parts(tensor, is_state ? kind + "/" : "");
  if (parts.empty()) {
    if (!is_state) problems.push_back(tensor.alternatives.front().front().stored + " is missing");
    return;
  }
  std::string problem;
  for (size_t i = 0; i < parts.size() && problem.empty(); ++i) problem = shape_problem(tensor, parts[i]);
  if (!problem.empty() && is_state) return;
  if (!problem.empty()) problems.push_back(problem);
  add({tensor.name, kind, contents_.tensors.at(parts.front().stored).dtype, tensor.shape});
  parts_.push_back(std::move(parts));
}

// Returns the parts of the first stored alternative, with `prefix` before their names; empty if there is none.
std::vector<Part> Source::find_parts(const MappedTensor& tensor, const std::string& prefix) const {
  for (std::vector<Part> parts : tensor.alternatives) {
    for (Part& part : parts) part.stored = prefix + part.stored;
    const bool is_stored = std::all_of(parts.begin(), parts.end(),
                                       [&](const Part& part) { return contents_.tensors.contains(part.stored); });
    if (is_stored) return parts;
  }
  return {};
}

// Returns "" if the stored tensor has the part's shape. The vocabulary may have more rows.
std::string Source::shape_problem(const MappedTensor& tensor, const Part& part) const {
  const StoredTensor& stored = contents_.tensors.at(part.stored);
  const checkpoint::Piece box = stored_box(part, part.offset, part.size);
  const bool is_vocabulary =
      tensor.name == "embedding.word_embeddings.weight" || tensor.name == "output_layer.weight";
  bool fits = stored.shape.size() == box.size.size();
  for (size_t dim = 0; fits && dim < box.size.size(); ++dim) {
    const bool may_be_larger = dim < part.index.size() || (is_vocabulary && dim == 0);
    fits = may_be_larger ? box.offset[dim] + box.size[dim] <= stored.shape[dim] : stored.shape[dim] == box.size[dim];
  }
  if (!fits)
    return base::concat(part.stored, " has shape ", checkpoint::describe_shape(stored.shape), ", but ", tensor.name,
                        " requires ", checkpoint::describe_shape(part.size),
                        part.index.empty() ? "" : " for each layer");
  if (!files::is_float(stored.dtype))
    return base::concat(part.stored, " is ", files::dtype_name(stored.dtype), ", not F64, F32, BF16 or F16");
  return "";
}

void Source::check_unknown(const std::vector<MappedTensor>& mapped, std::vector<std::string>& problems) const {
  std::set<std::string> known;
  for (const MappedTensor& tensor : mapped) {
    for (const std::vector<Part>& parts : tensor.alternatives) {
      for (const Part& part : parts) known.insert(part.stored);
    }
  }
  for (const auto& [name, tensor] : contents_.tensors) {
    const std::string weight = name.substr(name.find('/') + 1);
    if (!known.contains(weight) && !is_redundant(weight)) problems.push_back(name + " does not belong to this model");
  }
}

const std::byte* Source::data(const StoredTensor& tensor, const Chunk& chunk) {
  if (chunk.data != nullptr) return chunk.data;
  files::Bytes& file = files_[chunk.file];
  if (file.data == nullptr) file = disk_.map(chunk.file);
  auto& item = items_[&chunk];
  if (!item) item = std::make_unique<pickle::TorchFile>(file, chunk.file, chunk.begin, chunk.bytes);
  return read_item(*item, tensor, chunk).data + chunk.skipped * files::dtype_bits(tensor.dtype) / 8;
}

void Source::read(size_t index, const checkpoint::Piece& region, void* out) {
  std::vector<std::byte> buffer;
  for (const checkpoint::Piece& box : checkpoint::split_into_boxes(region)) {
    for (const Part& part : parts_[index]) {
      Dims offset, size;
      if (!overlap(box, part, offset, size)) continue;
      const StoredTensor& stored = contents_.tensors.at(part.stored);
      const auto width = static_cast<int64_t>(files::dtype_bits(stored.dtype) / 8);
      const checkpoint::Piece ours = checkpoint::box_piece(offset, size), theirs = stored_box(part, offset, size);
      buffer.resize(static_cast<size_t>(theirs.count() * width));
      int64_t copied = 0;
      for (const Chunk& chunk : stored.chunks) {
        const checkpoint::Piece piece = chunk.piece();
        if (checkpoint::boxes_meet(piece, theirs))
          copied += checkpoint::copy_overlap(piece, data(stored, chunk), theirs, buffer.data(), width);
      }
      MPX_CHECK(copied == theirs.count(), "checkpoint", "'", directory(), "': the chunks of ", part.stored, " have ",
                copied, " of the ", theirs.count(), " elements ", checkpoint::describe(theirs),
                "; the checkpoint is incomplete or has overlapping chunks");
      checkpoint::copy_overlap(ours, buffer.data(), region, out, width);
    }
  }
}

}  // namespace metroplex::mcore
