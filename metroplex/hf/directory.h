// A directory as transformers' save_pretrained writes it: config.json, model.safetensors or shards with
// model.safetensors.index.json, tokenizer files. Read as a checkpoint of weights, and written from one of ours.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/tensor_source.h"
#include "files/file_system.h"
#include "files/safetensors.h"
#include "hf/family.h"

namespace metroplex::hf {

// What config.json says: keys of section model, and the type of parameters that the weights are stored in. With a
// tokenizer in the directory, keys of section data that name it. Throws base::Error("hf").
std::vector<std::string> settings_of(files::FileSystem& disk, const std::string& directory);

// Keys model.special_token_ids and model.generation_config, from the two files of a directory.
std::vector<std::string> special_id_settings(const Json& config, const Json& generation);
// Writes the ids of model.special_token_ids into a config.json.
void add_special_ids(const config::Model& model, Json& config);
// The generation_config.json of a model.
Json generation_config(const config::Model& model);
// The ids that end a text, as generate() of transformers stops: eos_token_id of model.generation_config, else of
// model.special_token_ids. Empty if neither has one.
std::vector<int64_t> end_token_ids(const config::Model& model);

// Whether there is more than what says how the model is.
bool holds_weights(files::FileSystem& disk, const std::string& directory);

// Our weights and buffers, made of theirs. Of files that are mapped when first needed only what a region needs
// is read. Throws base::Error("hf") that lists all tensors that are missing, of another shape, or unknown. If
// model.vocab_size is larger than the stored embedding, each further row of embedding and head is the mean of the
// stored rows, as resize_token_embeddings of transformers begins new rows, without its noise.
class Source final : public checkpoint::TensorSource {
 public:
  // Of a resolved config. Tensors of ours that `wanted` refuses are not offered, and what of theirs only these are
  // made of need not be there.
  using Wanted = std::function<bool(const std::string& name)>;
  Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
         const Wanted& wanted = {});

 private:
  struct Stored {
    std::string file;
    files::TensorInfo info;
  };
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;
  const files::SafetensorsFile& open(const std::string& file);
  void list_tensors();
  void check_numbers(const config::Model& model) const;
  // `unwanted`: what may be missing. `unread`: what the names of tensors begin with that may be there.
  void check(const std::vector<MappedTensor>& unwanted, const std::vector<std::string>& unread) const;
  void check_tied();
  void grow_vocabulary();
  void fill_new_rows(size_t tensor, const checkpoint::Piece& box, const checkpoint::Piece& region, void* data);
  const std::vector<std::byte>& mean_row(size_t tensor);

  files::FileSystem& disk_;
  std::map<std::string, std::unique_ptr<files::SafetensorsFile>> files_;
  std::map<std::string, Stored> stored_;  // theirs
  std::vector<MappedTensor> mapped_;
  std::map<size_t, std::vector<std::byte>> mean_rows_;  // of grown tensors, in the stored dtype; empty: not read yet
};

struct ExportOptions {
  int64_t max_shard_bytes = int64_t{5} << 30;  // of a file; a tensor above it has one of its own
  // F32, BF16 or F16; absent: as the checkpoint holds the weights. Another type is rounded from the main parameters
  // where the checkpoint has them; what is in another type than the embedding keeps it.
  std::optional<files::Dtype> dtype = std::nullopt;
};
// Throws base::Error where write_directory would: no family has this model, or `directory` is there already.
void check_writable(files::FileSystem& disk, const config::Model& model, const std::string& directory);
// Writes a new directory, whole or not at all: beside it as <directory>.part, then renamed. Takes one tensor of
// theirs at a time, whatever layout wrote the checkpoint, with its adapters merged into the weights. Throws
// base::Error where `directory` is there already.
void write_directory(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                     const ExportOptions& options = {});
// The adapters of a run that has them, as PEFT's save_pretrained writes them: adapter_config.json and
// adapter_model.safetensors, in float32 where the checkpoint has main parameters. `base`: base_model_name_or_path,
// may be empty. Throws base::Error where the checkpoint has none, or transformers no module for one of them.
void write_adapters(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                    const std::string& base);

}  // namespace metroplex::hf
