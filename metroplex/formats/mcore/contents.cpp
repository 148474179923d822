#include "mcore/contents.h"

#include <algorithm>
#include <charconv>
#include <cstdio>

#include "base/error.h"

namespace metroplex::mcore {
namespace {

using files::join_path;
using pickle::Kind;
using pickle::Value;

// DeepSpeed's checkpoints have other files with this prefix.
bool has_rank_folder(files::FileSystem& disk, const std::string& directory) {
  const std::vector<std::string> names = disk.list(directory);
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) {
    return name.starts_with("mp_rank_") && disk.exists(join_path(join_path(directory, name), "model_optim_rng.pt"));
  });
}

bool is_torch_dist(files::FileSystem& disk, const std::string& directory) {
  return disk.exists(join_path(directory, "common.pt")) && disk.exists(join_path(directory, ".metadata"));
}

// Plain torch.distributed.checkpoint, with the names of megatron.core. torch_dist also has a metadata.json.
bool is_torch_dcp(files::FileSystem& disk, const std::string& directory) {
  const std::string path = join_path(directory, ".metadata");
  if (!disk.exists(path) || disk.exists(join_path(directory, "metadata.json"))) return false;
  return disk.map(path).text().find("embedding.word_embeddings.weight") != std::string_view::npos;
}

bool is_checkpoint(files::FileSystem& disk, const std::string& directory) {
  return disk.is_directory(directory) &&
         (is_torch_dist(disk, directory) || is_torch_dcp(disk, directory) || has_rank_folder(disk, directory));
}

// Returns the name of a folder: iter_0000100, or release.
std::string tracked_name(files::FileSystem& disk, const std::string& path) {
  std::string text = disk.read(path);
  while (!text.empty() && std::isspace(static_cast<unsigned char>(text.back())) != 0) text.pop_back();
  int64_t iteration = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), iteration);
  const bool is_number = error == std::errc() && stop == text.data() + text.size() && iteration >= 0;
  MPX_CHECK(is_number || text == "release", "checkpoint", "'", path, "' = '", text.substr(0, 40),
            "': must be an iteration or release; write the iteration of a complete iter_* folder");
  return is_number ? iteration_name(iteration) : text;
}

// Numbers are written so that they read back exactly.
bool add_word(const Value& value, std::vector<std::string>& words) {
  char text[40];
  switch (value.kind) {
    case Kind::boolean:
      words.emplace_back(value.integer != 0 ? "True" : "False");
      return true;
    case Kind::integer:
      words.push_back(std::to_string(value.integer));
      return true;
    case Kind::text:
      words.emplace_back(value.text);
      return true;
    case Kind::real: {
      const auto [end, error] = std::to_chars(text, text + sizeof text, value.real);
      words.emplace_back(text, end);
      return error == std::errc();
    }
    default:
      return false;
  }
}

}  // namespace

std::string iteration_name(int64_t iteration) {
  char name[32];
  std::snprintf(name, sizeof name, "iter_%07lld", static_cast<long long>(iteration));
  return name;
}

std::string find_directory(files::FileSystem& disk, const std::string& path, int64_t iteration) {
  if (!disk.is_directory(path)) return "";
  const std::string tracker = join_path(path, kTracker);
  if (iteration > 0 && disk.exists(tracker)) {
    const std::string directory = join_path(path, iteration_name(iteration));
    MPX_CHECK(is_checkpoint(disk, directory), "checkpoint", "'", path, "' has no checkpoint of iteration ", iteration,
              "; choose an iteration that has a folder there");
    return directory;
  }
  if (is_checkpoint(disk, path)) {
    MPX_CHECK(iteration == 0 || files::base_name(path) == iteration_name(iteration), "checkpoint", "'", path,
              "' is one checkpoint, not that of iteration ", iteration, "; name its folder, or omit the iteration");
    return path;
  }
  if (!disk.exists(tracker)) return "";
  const std::string directory = join_path(path, tracked_name(disk, tracker));
  MPX_CHECK(disk.is_directory(directory), "checkpoint", "'", tracker, "' names '", directory,
            "': must be a complete checkpoint; copy that folder, or write the iteration of another one");
  for (const auto& [file, other] : {std::pair{"common.pt", ".metadata"}, {".metadata", "common.pt"}}) {
    if (is_torch_dcp(disk, directory)) break;
    MPX_CHECK(!disk.exists(join_path(directory, file)) || disk.exists(join_path(directory, other)), "checkpoint", "'",
              join_path(directory, other), "' is missing: a torch_dist checkpoint has ", file, " and ", other,
              "; copy the whole folder");
  }
  return is_checkpoint(disk, directory) ? directory : "";
}

checkpoint::Piece Chunk::piece() const {
  checkpoint::Piece piece = checkpoint::box_piece(offset, size);
  if (to >= 0) piece.begin = from, piece.end = to;
  return piece;
}

Contents read_contents(files::FileSystem& disk, const std::string& directory) {
  if (is_torch_dist(disk, directory)) return read_torch_dist(disk, directory);
  return is_torch_dcp(disk, directory) ? read_torch_dcp(disk, directory) : read_torch(disk, directory);
}

void verify_contents(files::FileSystem& disk, const std::string& directory, const Contents& contents) {
  for (const auto& file : contents.files) file->verify();
  for (const auto& [name, tensor] : contents.tensors) {
    std::vector<checkpoint::Piece> pieces;
    for (const Chunk& chunk : tensor.chunks) pieces.push_back(chunk.piece());
    const std::string problem = checkpoint::cover_problem(tensor.shape, pieces);
    MPX_CHECK(problem.empty(), "checkpoint", "'", directory, "', ", name, ": ", problem,
              "; copy the checkpoint of all ranks again");
    for (const Chunk& chunk : tensor.chunks) {
      if (chunk.data != nullptr) continue;
      const pickle::TorchFile item(disk.map(chunk.file), chunk.file, chunk.begin, chunk.bytes);
      item.verify();
      read_item(item, tensor, chunk);
    }
  }
}

Arguments read_arguments(const pickle::Document& document, const Value& args) {
  const bool is_namespace = args.is_object("argparse.Namespace") && args.state != nullptr;
  const Value& attributes = is_namespace ? *args.state : args;
  Arguments arguments;
  const auto& pairs = document.pairs(attributes, "args");
  for (size_t i = 0; i < pairs.size(); i += 2) {
    const Value& value = *pairs[i + 1];
    std::vector<std::string> words;
    bool known = true;
    if (value.kind == Kind::tuple || value.kind == Kind::list) {
      for (const Value* item : value.items) known = known && add_word(*item, words);
    } else {
      known = add_word(value, words);
    }
    if (known) arguments[std::string(document.text(*pairs[i], "the name of an argument"))] = words;
  }
  return arguments;
}

int64_t integer_argument(const Arguments& arguments, const char* name, int64_t absent) {
  const auto found = arguments.find(name);
  if (found == arguments.end() || found->second.size() != 1) return absent;
  const std::string& text = found->second.front();
  int64_t value = 0;
  const auto [stop, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  MPX_CHECK(error == std::errc() && stop == text.data() + text.size(), "checkpoint", "args.", name, " = ", text,
            ": must be an integer; save the checkpoint with Megatron-LM");
  return value;
}

// Returns the samples of the steps that Megatron's OptimizerParamScheduler has counted.
int64_t read_scheduled_samples(const pickle::Document& document) {
  const Value* const schedule = document.find(document.root(), "opt_param_scheduler");
  const Value* const samples = schedule == nullptr ? nullptr : document.find(*schedule, "num_steps");
  return samples != nullptr && samples->kind == Kind::integer && samples->integer >= 0 ? samples->integer : -1;
}

bool is_model_tensor(const std::string& name) {
  constexpr const char* kPrefixes[] = {"embedding.", "decoder.", "output_layer.", "mtp."};
  return std::any_of(std::begin(kPrefixes), std::end(kPrefixes),
                     [&](const char* prefix) { return name.starts_with(prefix); });
}

// The state of Megatron's optimizers has the names of the model, unless the distributed optimizer stores its buckets
// (dp_reshardable). Each of several optimizers has a prefix.
std::string find_key(const std::string& stored_name) {
  static constexpr std::pair<const char*, const char*> kState[] = {{"optimizer.state.fp32_param.", "main"},
                                                                   {"optimizer.state.param.", "main"},
                                                                   {"optimizer.state.exp_avg.", "exp_avg"},
                                                                   {"optimizer.state.exp_avg_sq.", "exp_avg_sq"}};
  std::string name = strip_prefix(stored_name);
  if (is_model_tensor(name)) return name;
  if (name.starts_with(kChained)) name.erase(0, name.find('.') + 1);
  for (const auto& [prefix, kind] : kState) {
    if (!name.starts_with(prefix)) continue;
    const std::string param = strip_prefix(name.substr(std::char_traits<char>::length(prefix)));
    if (is_model_tensor(param)) return base::concat(kind, "/", param);
  }
  // Megatron-FSDP: the kind follows the name.
  static const std::string kPrefix = "optimizer.state.";
  const size_t dot = name.rfind('.');
  for (const char* kind : {"exp_avg", "exp_avg_sq"}) {
    if (!name.starts_with(kPrefix) || dot < kPrefix.size() || name.substr(dot + 1) != kind) continue;
    const std::string param = strip_prefix(name.substr(kPrefix.size(), dot - kPrefix.size()));
    if (is_model_tensor(param)) return base::concat(kind, "/", param);
  }
  return "";
}

std::string strip_prefix(std::string name) {
  for (const std::string_view prefix : {"model.", "module."}) {
    while (name.starts_with(prefix)) name.erase(0, prefix.size());
  }
  return name;
}

}  // namespace metroplex::mcore
