// Contents of a checkpoint of Megatron-LM: its arguments and its stored tensors, each a set of chunks in files. Three
// formats are read: torch_dist (megatron.core.dist_checkpointing), torch (mp_rank_* folders with model_optim_rng.pt),
// and torch_dcp or fsdp_dtensor (torch.distributed.checkpoint). A chunk is a box of a tensor that the ranks of
// Megatron share; stages, tensor-parallel shards and expert-parallel ranks are joined here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "checkpoint/pieces.h"
#include "files/dtype.h"
#include "files/file_system.h"
#include "pickle/torch_file.h"

namespace metroplex::mcore {

using checkpoint::Dims;

inline constexpr const char* kStateKinds[] = {"main", "exp_avg", "exp_avg_sq"};
inline constexpr const char* kTracker = "latest_checkpointed_iteration.txt";
inline constexpr const char* kChained = "chained_";  // and a number: an optimizer of several
inline constexpr const char* kEmbedding = "embedding.word_embeddings.weight";

struct Chunk {
  Dims offset, size;
  const std::byte* data = nullptr;  // contiguous; null: in an item of torch_dist
  std::string file = {};
  uint64_t begin = 0, bytes = 0;  // item of `file`: a file of torch.save
  int64_t from = 0, to = -1;      // elements of the box in row-major order; -1: all
  int64_t skipped = 0;            // elements of the item before them
  int64_t item_elements = -1;     // -1: those of the chunk

  checkpoint::Piece piece() const;
};

struct StoredTensor {
  files::Dtype dtype = files::Dtype::kF32;
  Dims shape;
  std::vector<Chunk> chunks;
};

// The words of each attribute of Megatron's args, such as {"num_layers", {"4"}}; lists have several. None and objects
// are left out. Booleans are "True" and "False".
using Arguments = std::map<std::string, std::vector<std::string>, std::less<>>;

struct Contents {
  std::string format;  // "torch_dist", "torch" or "torch_dcp"
  int64_t iteration = 0;
  Arguments arguments;  // may be empty in torch_dcp
  // Model tensors by Megatron's name, without a leading "model." or "module.". Names have global numbers of layers
  // and experts. The state of AdamW is KIND/NAME, with the kind of files/manifest.h: main, exp_avg, exp_avg_sq.
  std::map<std::string, StoredTensor> tensors;
  int64_t other_tensors = 0;                              // other state, which is not read
  int64_t optimizer_steps = 0;                            // 0: without optimizer state
  std::string state_problem;                              // why optimizer state is not read; "" if it is
  int64_t scheduled_samples = -1;                         // of the learning-rate schedule; -1: not stored
  std::vector<std::unique_ptr<pickle::TorchFile>> files;  // owns the data of chunks
};

// Returns the directory of one checkpoint: `path`, or in a folder of checkpoints that of `iteration` (0: the one in
// latest_checkpointed_iteration.txt). Returns "" if there is no checkpoint of Megatron in `path`.
std::string find_directory(files::FileSystem& disk, const std::string& path, int64_t iteration);
// `directory`: of one checkpoint. Throws base::Error with the file and the problem.
Contents read_contents(files::FileSystem& disk, const std::string& directory);
// Throws base::Error if the chunks of a tensor overlap or do not cover it, or if a checksum is wrong. Reads all data.
void verify_contents(files::FileSystem& disk, const std::string& directory, const Contents& contents);

// Returns the number of an argument; `absent` if there is none.
int64_t integer_argument(const Arguments& arguments, const char* name, int64_t absent);

// Internal to this module.
std::string iteration_name(int64_t iteration);  // "iter_0000100"
Contents read_torch_dist(files::FileSystem& disk, const std::string& directory);
Contents read_torch_dcp(files::FileSystem& disk, const std::string& directory);
Contents read_torch(files::FileSystem& disk, const std::string& directory);
int64_t read_scheduled_samples(const pickle::Document& document);
Arguments read_arguments(const pickle::Document& document, const pickle::Value& args);
// Whether a tensor without a leading "model." or "module." belongs to the model.
bool is_model_tensor(const std::string& name);
std::string strip_prefix(std::string name);
// Returns the key of a tensor in Contents::tensors; "" for other state.
std::string find_key(const std::string& stored_name);
// Returns the tensor of an item. Throws base::Error if its dtype or its shape differs from the metadata.
pickle::Tensor read_item(const pickle::TorchFile& item, const StoredTensor& tensor, const Chunk& chunk);

}  // namespace metroplex::mcore
