// metroplex inspect: shows the contents of a checkpoint, a folder of checkpoints, a safetensors file or a token
// dataset.
#include <algorithm>
#include <cstdio>
#include <iostream>

#include "apps/command.h"
#include "apps/commands.h"
#include "apps/console.h"
#include "apps/inspect.h"
#include "apps/tensor_sources.h"
#include "base/bytes_text.h"
#include "base/error.h"
#include "checkpoint/directory.h"
#include "checkpoint/load.h"
#include "checkpoint/pieces.h"
#include "config/load.h"
#include "files/file_system.h"
#include "files/indexed_dataset.h"
#include "files/json_text.h"
#include "files/safetensors.h"

namespace metroplex::apps {

// Removes control characters, because the file may be untrusted.
static std::string field_text(const OrderedJson& entry, const char* key) {
  return files::printable(entry.at(key).get_ref<const std::string&>());
}

static std::string pad(std::string text, size_t width) {
  text.resize(std::max(width, text.size()), ' ');
  return text;
}

void print_tensors(const OrderedJson& tensors) {
  size_t name_width = 4, kind_width = 4, dtype_width = 4;
  for (const OrderedJson& tensor : tensors) {
    name_width = std::max(name_width, field_text(tensor, "name").size());
    kind_width = std::max(kind_width, field_text(tensor, "kind").size());
    dtype_width = std::max(dtype_width, field_text(tensor, "dtype").size());
  }
  for (const OrderedJson& tensor : tensors) {
    std::cout << "  " << pad(field_text(tensor, "name"), name_width) << "  "
              << pad(field_text(tensor, "kind"), kind_width) << "  " << pad(tensor.at("dtype"), dtype_width + 1)
              << pad(tensor.at("shape").dump(), 16);
    if (tensor.contains("pieces"))
      std::cout << "  " << tensor.at("pieces") << (tensor.at("pieces") == 1 ? " piece" : " pieces");
    std::cout << '\n';
  }
}

int report_damage(const InspectOptions& options, OrderedJson json, const std::vector<std::string>& problems,
                  const char* sound) {
  if (options.json) {
    if (options.verify || !problems.empty()) json["problems"] = problems;
    std::cout << json_text(json) << '\n';
  } else if (options.verify) {
    for (const std::string& problem : problems) std::cout << "DAMAGED  " << problem << '\n';
    if (problems.empty()) std::cout << sound << '\n';
  }
  return problems.empty() ? 0 : kInspectDamaged;
}

namespace {

using base::bytes_text;
using files::join_path;

// For formats that are validated when opened.
constexpr const char* kCompleteText = "the file is complete; its format has no checksums to compare\n";

// Lists the damaged tensors of a file with a wrong checksum. Reading one element of a region verifies the whole
// region.
std::string damaged_part(files::FileSystem& disk, const std::string& directory, size_t file) {
  checkpoint::Reader reader(disk, directory);
  std::string names;
  int64_t damaged = 0, pieces = 0;
  for (const files::ManifestTensor& tensor : reader.manifest().tensors) {
    for (const files::ManifestPiece& piece : tensor.pieces) {
      if (piece.file != static_cast<int64_t>(file) || piece.begin == piece.end) continue;
      ++pieces;
      try {
        char element[8];
        reader.fill({tensor.name, tensor.kind, tensor.shape, piece.offset, piece.size, tensor.dtype, element,
                     piece.begin, piece.begin + 1});
      } catch (const base::Error&) {
        if (++damaged <= 4) names += (names.empty() ? "" : ", ") + files::printable(piece.key);
      }
    }
  }
  if (pieces == 0) return "";
  if (damaged == 0) return "; its tensors are intact";
  if (damaged == pieces) return "; none of its tensors can be read";
  return base::concat("; damaged tensors: ", names, damaged > 4 ? base::concat(" and ", damaged - 4, " more") : "");
}

std::vector<std::string> damages(files::FileSystem& disk, const std::string& directory) {
  std::vector<std::string> problems;
  const auto attempt = [&](const auto& work) {
    try {
      work();
    } catch (const base::Error& error) { problems.push_back(error.what()); }
  };
  attempt([&] {
    checkpoint::Reader reader(disk, directory);
    for (size_t file = 0; file < reader.manifest().files.size(); ++file) {
      const size_t before = problems.size();
      attempt([&] { reader.verify_file(file); });
      if (problems.size() > before) problems.back() += damaged_part(disk, directory, file);
    }
    attempt([&] { reader.verify_cover(); });
    attempt([&] { config::parse_saved(reader.manifest().config_yaml); });
  });
  return problems;
}

// Checks run.yaml in a run's folder, if it exists. Another run can start from this configuration.
std::string config_damage(files::FileSystem& disk, const std::string& folder) {
  const std::string path = join_path(folder, "run.yaml");
  try {
    if (disk.exists(path)) config::parse(disk.read(path));
  } catch (const base::Error& error) { return path + ": " + base::message_of(error); }
  return "";
}

OrderedJson describe_checkpoint(const files::Manifest& manifest, const std::string& directory) {
  OrderedJson json{{"kind", "checkpoint"},
                   {"path", directory},
                   {"iteration", manifest.iteration},
                   {"consumed_samples", manifest.consumed_samples}};
  int64_t bytes = 0;
  OrderedJson& all_files = json["files"] = OrderedJson::array();
  for (const auto& file : manifest.files) {
    all_files.push_back({{"name", file.name}, {"bytes", file.bytes}, {"checksum", files::to_hex(file.checksum)}});
    bytes += file.bytes;
  }
  json["bytes"] = bytes;
  OrderedJson& tensors = json["tensors"] = OrderedJson::array();
  for (const auto& tensor : manifest.tensors) {
    tensors.push_back({{"name", tensor.name},
                       {"kind", tensor.kind},
                       {"dtype", files::dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"pieces", tensor.pieces.size()}});
  }
  json["extra"] = OrderedJson::parse(manifest.extra);
  json["config"] = manifest.config_yaml;
  return json;
}

void print_config(const OrderedJson& json) {
  std::cout << "config:\n"
            << json.at("config").get<std::string>() << "extra: " << json_text(json.at("extra")) << '\n';
}

void print_checkpoint(const OrderedJson& json, bool with_config) {
  std::cout << json.at("path").get<std::string>() << ": iteration " << json.at("iteration") << ", "
            << json.at("consumed_samples") << " samples consumed, " << json.at("tensors").size() << " tensors, "
            << json.at("files").size() << " files, " << bytes_text(json.at("bytes").get<double>()) << '\n';
  for (const OrderedJson& file : json.at("files")) {
    std::cout << "  " << field_text(file, "name") << "  " << bytes_text(file.at("bytes").get<double>()) << "  "
              << file.at("checksum").get<std::string>() << '\n';
  }
  print_tensors(json.at("tensors"));
  if (with_config) print_config(json);
}

int inspect_checkpoint(files::FileSystem& disk, const InspectOptions& options, const std::string& directory) {
  const auto problems = options.verify ? damages(disk, directory) : std::vector<std::string>{};
  OrderedJson json{{"kind", "checkpoint"}, {"path", directory}};
  if (problems.empty() || !options.verify) {
    json = describe_checkpoint(checkpoint::Reader(disk, directory).manifest(), directory);
    if (!options.json) print_checkpoint(json, options.config);
  }
  return report_damage(options, std::move(json), problems);
}

// Adds the configuration of the checkpoint in `latest`, or of the last one.
void add_config(const InspectOptions& options, const OrderedJson& described, OrderedJson& folder) {
  if (!options.config) return;
  for (const char* key : {"config", "extra"}) folder[key] = described.at(key);
}

int inspect_folder(files::FileSystem& disk, const InspectOptions& options) {
  const auto names = checkpoint::list_checkpoints(disk, options.path);
  const auto latest = checkpoint::read_latest(disk, options.path);
  MPX_CHECK(
      !names.empty(), "checkpoint", "'", options.path,
      "' contains no checkpoint: no manifest.json, no iter_* folders, and no config.json with safetensors files");
  std::vector<std::string> all_problems;
  if (!latest.problem.empty()) all_problems.push_back(latest.problem);
  const std::string config_problem = options.verify ? config_damage(disk, options.path) : "";
  if (!config_problem.empty()) all_problems.push_back(config_problem);
  OrderedJson json{{"kind", "checkpoints"},
                   {"path", options.path},
                   {"latest", latest.name ? OrderedJson(to_string(*latest.name)) : OrderedJson()}};
  OrderedJson list = OrderedJson::array();
  bool past_latest = false;  // belongs to an abandoned branch
  for (const auto& name : names) {
    const std::string directory = join_path(options.path, to_string(name));
    OrderedJson entry{{"name", to_string(name)}, {"iteration", name.iteration}};
    if (const std::string foreign = checkpoint::foreign_format(disk, directory); !foreign.empty()) {
      entry["foreign"] = foreign;
      if (!options.json) std::cout << "  " << to_string(name) << "  not a Metroplex checkpoint: " << foreign << '\n';
      list.push_back(std::move(entry));
      continue;
    }
    auto problems = options.verify ? damages(disk, directory) : std::vector<std::string>{};
    try {
      const auto described = describe_checkpoint(checkpoint::Reader(disk, directory).manifest(), directory);
      for (const char* key : {"consumed_samples", "bytes"}) entry[key] = described.at(key);
      entry["tensors"] = described.at("tensors").size();
      if (!past_latest) add_config(options, described, json);
    } catch (const base::Error& error) {
      if (!options.verify) problems.push_back(error.what());
    }
    if (!options.json) {
      std::cout << (latest.name == name ? "* " : "  ") << to_string(name);
      if (entry.contains("bytes")) {
        std::cout << "  " << bytes_text(entry["bytes"].get<double>()) << "  " << entry["tensors"] << " tensors  "
                  << entry["consumed_samples"] << " samples";
      }
      std::cout << (problems.empty() ? "" : "  DAMAGED") << '\n';
    }
    list.push_back(std::move(entry));
    past_latest = past_latest || latest.name == name;
    all_problems.insert(all_problems.end(), problems.begin(), problems.end());
  }
  json["checkpoints"] = std::move(list);
  if (!options.json && json.contains("config")) print_config(json);
  if (!options.json && !options.verify) {
    for (const std::string& problem : all_problems) std::cout << "DAMAGED  " << problem << '\n';
    std::cout
        << "(* marks the checkpoint that `latest` points to; inspect a single checkpoint to list its tensors)\n";
  }
  return report_damage(options, std::move(json), all_problems);
}

int inspect_safetensors(files::FileSystem& disk, const InspectOptions& options) {
  const files::SafetensorsFile file(disk.map(options.path), options.path);
  OrderedJson json{{"kind", "safetensors"}, {"path", options.path}, {"metadata", OrderedJson::object()}};
  for (const auto& [key, value] : file.metadata()) json["metadata"][key] = value;
  OrderedJson& tensors = json["tensors"] = OrderedJson::array();
  for (const auto& tensor : file.tensors()) {
    tensors.push_back({{"name", tensor.name},
                       {"kind", ""},
                       {"dtype", files::dtype_name(tensor.dtype)},
                       {"shape", tensor.shape},
                       {"checksum", files::to_hex(files::checksum(file.data(tensor), tensor.end - tensor.begin))}});
  }
  if (options.json) {
    std::cout << json_text(json) << '\n';
  } else {
    std::cout << options.path << ": " << file.tensors().size() << " tensors, metadata "
              << json_text(json["metadata"], -1) << '\n';
    print_tensors(tensors);
    if (options.verify) std::cout << kCompleteText;
  }
  return 0;
}

int inspect_dataset(files::FileSystem& disk, const InspectOptions& options, const std::string& prefix) {
  const files::IndexedDataset dataset(disk, prefix);
  const files::Bytes& index = dataset.index_bytes();
  const files::Bytes& tokens = dataset.token_bytes();
  const OrderedJson json{{"kind", "dataset"},
                         {"path", prefix},
                         {"token_type", files::token_type_name(dataset.type())},
                         {"tokens", dataset.num_tokens()},
                         {"sequences", dataset.num_sequences()},
                         {"documents", dataset.num_documents()},
                         {"idx_checksum", files::to_hex(files::checksum(index.data, index.size))},
                         {"bin_checksum", files::to_hex(files::checksum(tokens.data, tokens.size))}};
  if (options.json) {
    std::cout << json_text(json) << '\n';
  } else {
    std::cout << prefix << ": " << dataset.num_tokens() << " tokens of " << files::token_type_name(dataset.type())
              << ", " << dataset.num_sequences() << " sequences, " << dataset.num_documents() << " documents\n  .idx "
              << bytes_text(static_cast<double>(index.size)) << "  " << json["idx_checksum"].get<std::string>()
              << "\n  .bin " << bytes_text(static_cast<double>(tokens.size)) << "  "
              << json["bin_checksum"].get<std::string>() << '\n';
    if (options.verify) std::cout << kCompleteText;
  }
  return 0;
}

int inspect_directory(files::FileSystem& disk, const InspectOptions& options) {
  if (is_hf_directory(disk, options.path)) return inspect_hf(disk, options);
  if (is_model_directory(disk, options.path)) return inspect_megatron(disk, options);
  refuse_foreign(disk, options.path);
  if (disk.exists(join_path(options.path, files::kManifestName)))
    return inspect_checkpoint(disk, options, options.path);
  if (options.iteration == 0) return inspect_folder(disk, options);
  checkpoint::Alone alone;
  return inspect_checkpoint(disk, options,
                            checkpoint::open_iteration(disk, options.path, options.iteration, alone)->directory());
}

}  // namespace

int run_inspect(const std::vector<std::string>& arguments) {
  InspectOptions options;
  CLI::App app(
      "Shows the contents of a checkpoint, a folder of checkpoints, a Hugging Face directory, a checkpoint of\n"
      "Megatron-LM, a .safetensors file, or a token dataset (PREFIX, PREFIX.idx or PREFIX.bin).",
      "metroplex inspect");
  app.add_option("path", options.path, "the file or folder to inspect")->required();
  app.add_flag("--verify", options.verify,
               "compare every checksum and list all damage (exit code 3); check files without checksums for\n"
               "completeness");
  app.add_option("--diff", options.other,
                 "compare with this checkpoint (or the newest one in this folder), saved with any layout,\n"
                 "or with this Hugging Face directory; reports shape, dtype, elements that differ, and the norm\n"
                 "of the difference; exit code 1 if any tensor differs");
  app.add_option("--iteration", options.iteration, "use this iteration, not the newest")->check(not_above_0);
  app.add_flag("--config", options.config,
               "also show the saved configuration and run state; for a folder, those of its newest checkpoint");
  app.add_flag("--json", options.json, "print JSON");
  app.footer(
      "Examples:\n  metroplex inspect runs/a/checkpoints --verify\n"
      "  metroplex inspect runs/a/checkpoints/iter_0000100 --diff runs/b/checkpoints/iter_0000100");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  files::PosixFileSystem disk;
  if (!options.other.empty()) return inspect_diff(disk, options);
  if (disk.is_directory(options.path)) return inspect_directory(disk, options);
  for (const char* suffix : {"", ".idx", ".bin"}) {
    if (!options.path.ends_with(suffix)) continue;
    const std::string prefix = options.path.substr(0, options.path.size() - std::string(suffix).size());
    if (disk.exists(prefix + ".idx")) return inspect_dataset(disk, options, prefix);
  }
  MPX_CHECK(disk.exists(options.path), "files", "there is no '", options.path, "', and no '", options.path, ".idx'");
  return inspect_safetensors(disk, options);
}

}  // namespace metroplex::apps
