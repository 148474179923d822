// Hugging Face model directories as transformers' save_pretrained writes them: config.json, model.safetensors or
// shards with model.safetensors.index.json, and tokenizer files. They can be read as a weights checkpoint and written
// from a Metroplex checkpoint.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/load.h"
#include "checkpoint/save.h"
#include "checkpoint/tensor_source.h"
#include "files/file_system.h"
#include "files/safetensors.h"
#include "hf/family.h"
#include "hf/quantization.h"
#include "hf/text_part.h"

namespace metroplex::hf {

// Converts config.json to keys of section model and the dtype of the stored weights. With a tokenizer in the
// directory, also keys of section data for it. Throws base::Error("hf").
std::vector<std::string> read_settings(files::FileSystem& disk, const std::string& directory);

// Returns the quantization of config.json.
Quantization read_quantization(files::FileSystem& disk, const std::string& directory);
// Returns the vocab_size of config.json.
int64_t vocabulary_size(files::FileSystem& disk, const std::string& directory);
// Returns notes about content that is not read: the other models of a multimodal directory, Python code to which
// config.json refers (auto_map), and multi-token prediction layers that the weight files lack.
std::vector<std::string> directory_notes(files::FileSystem& disk, const std::string& directory);

// Returns keys model.special_token_ids and model.generation_config from the directory's two files.
std::vector<std::string> special_id_settings(const Json& config, const Json& generation);
void add_special_ids(const config::Model& model, Json& config);
Json generation_config(const config::Model& model);
// Returns the ids that end a text in generate() of transformers. They are eos_token_id of model.generation_config,
// else of model.special_token_ids; empty if both lack it.
std::vector<int64_t> end_token_ids(const config::Model& model);

// Whether the directory has weights in addition to configuration files.
bool has_weights(files::FileSystem& disk, const std::string& directory);

// Returns one line per problem for the end of an error; at most twelve.
std::string list_problems(const std::vector<std::string>& problems);

// Weights and buffers of a Metroplex model, read from a Hugging Face directory. Files are memory-mapped on first use,
// and only the requested regions are read. Throws base::Error("hf") with a list of all missing, misshapen and unknown
// tensors.
// If model.vocab_size exceeds the stored embedding, each additional row of embedding and output layer is the mean of
// the stored rows. This is resize_token_embeddings of transformers without its noise.
// In a quantized directory, weights have the dtype of config.json. Weights that are rounded to it are also available
// as "main", in float32.
class Source final : public checkpoint::TensorSource {
 public:
  // `model` must be resolved. Tensors for which `wanted` returns false are not provided, and their stored tensors may
  // be missing.
  using Wanted = std::function<bool(const std::string& name)>;
  Source(files::FileSystem& disk, const std::string& directory, const config::Model& model,
         const Wanted& wanted = {});

 private:
  struct Stored {
    std::string file;
    files::TensorInfo info;
  };
  class PartReader;
  void read(size_t tensor, const checkpoint::Piece& region, void* data) override;
  const files::SafetensorsFile& open(const std::string& file);
  const std::byte* tensor_data(const std::string& name);
  void list_tensors(const TextPart& text);
  void map_quantized();
  void add_tensors();
  files::Dtype value_dtype(const MappedTensor& tensor) const;
  bool is_rounded(const MappedTensor& tensor) const;  // to value_dtype
  void check_numbers(const config::Model& model) const;
  // `unwanted`: tensors that may be missing. `unread`: name prefixes of stored tensors that are ignored. `constants`:
  // stored tensors without a mapping.
  void check(const config::Model& model, const std::vector<MappedTensor>& unwanted,
             const std::vector<std::string>& unread, const std::set<std::string>& constants) const;
  // Returns the names of the family's constants, after a comparison with those in the directory.
  std::set<std::string> check_constants(const Family& family, const config::Model& model);
  void check_part(const TensorPart& part, const TensorPart& first, std::vector<std::string>& problems) const;
  void check_codes(const std::string& name, const QuantizedForm& form, std::vector<std::string>& problems) const;
  void check_tied();
  void grow_vocabulary();
  void fill_new_rows(size_t mapped, files::Dtype dtype, const checkpoint::Piece& box, const checkpoint::Piece& region,
                     void* data);
  const std::vector<double>& mean_row(size_t mapped);

  files::FileSystem& disk_;
  std::map<std::string, std::unique_ptr<files::SafetensorsFile>> files_;
  std::map<std::string, Stored> stored_;  // by Hugging Face name
  Quantization quantization_;
  files::Dtype config_dtype_;
  std::map<std::string, QuantizedForm> quantized_;  // by the name of the codes
  std::vector<MappedTensor> mapped_;
  std::vector<size_t> in_mapped_;                    // for each of tensors()
  std::map<size_t, std::vector<double>> mean_rows_;  // of grown tensors; empty before use
};

struct ExportOptions {
  int64_t max_shard_bytes = int64_t{5} << 30;  // per file; a larger tensor has its own file
  // F32, BF16 or F16; absent: the dtype of the checkpoint. A conversion rounds the main parameters if the checkpoint
  // has them. Tensors whose dtype differs from the embedding's keep their dtype.
  std::optional<files::Dtype> dtype = std::nullopt;
  std::string quantization = "";  // or a method of quantized_export.h; weights are rounded from the main parameters
};
// Throws base::Error if write_directory would: no family matches the model, or `directory` exists.
void check_writable(files::FileSystem& disk, const config::Model& model, const std::string& directory);
// Writes a new directory atomically: to <directory>.part, then renamed. Processes one Hugging Face tensor at a time,
// for any parallel layout of the checkpoint. Adapters are merged into the weights. Throws base::Error if `directory`
// exists.
void write_directory(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                     const ExportOptions& options = {});
// The same for weights without adapters. `tokenizer`: files to write next to them.
void write_weights_directory(files::FileSystem& disk, checkpoint::TensorSource& weights, config::Model model,
                             const std::vector<checkpoint::SideFile>& tokenizer, const std::string& directory,
                             const ExportOptions& options = {});
// Writes the adapters of a run as PEFT's save_pretrained does: adapter_config.json and adapter_model.safetensors, in
// float32 if the checkpoint has main parameters. `base`: base_model_name_or_path, may be empty. Throws base::Error if
// the checkpoint has no adapters, or if transformers has no module for one of them.
void write_adapters(files::FileSystem& disk, checkpoint::Reader& run, const std::string& directory,
                    const std::string& base);

}  // namespace metroplex::hf
