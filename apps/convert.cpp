// metroplex convert: converts weights between formats, or rewrites a checkpoint's files. Works on bytes, without
// tensors.
#include <algorithm>
#include <iostream>
#include <map>

#include "apps/command.h"
#include "apps/commands.h"
#include "apps/tensor_sources.h"
#include "base/error.h"
#include "base/join.h"
#include "base/utf8.h"
#include "checkpoint/directory.h"
#include "checkpoint/exchange.h"
#include "checkpoint/load.h"
#include "checkpoint/rewrite.h"
#include "files/file_system.h"
#include "foreign/model_directory.h"
#include "hf/directory.h"
#include "hf/merged.h"
#include "mcore/write.h"

namespace metroplex::apps {
namespace {

constexpr int kMaxRanks = 1024;  // each is a thread

const std::map<std::string, files::Dtype> kTypes{
    {"fp32", files::Dtype::kF32}, {"bf16", files::Dtype::kBF16}, {"fp16", files::Dtype::kF16}};

struct ConvertOptions {
  std::string from, to, directory, dtype, quantization, base, adapters;
  int64_t step = 0;
  uint64_t shard = uint64_t{5} << 30;
  int ranks = 1;
  bool weights_only = false;
};

// Checks the target before any input is read. A run would treat a target in or next to its checkpoints as its own.
void check_target(files::FileSystem& disk, const ConvertOptions& options) {
  disk.check_new_directory(options.directory);
  const std::string target = disk.canonical(options.directory), from = disk.canonical(options.from);
  MPX_CHECK(!checkpoint::parse_name(files::base_name(target)), "files", "'", options.directory,
            "' is named like a checkpoint and would be read as one; choose another name");
  MPX_CHECK(!target.starts_with(from + "/"), "files", "'", options.directory, "' is inside '", options.from,
            "', its source; choose a directory outside of it");
}

std::unique_ptr<checkpoint::Reader> open_checkpoint(files::FileSystem& disk, const ConvertOptions& options) {
  MPX_CHECK(options.adapters.empty(), "config", "--adapter = ", options.adapters,
            ": is for a Hugging Face directory with --to hf or --to checkpoint; convert a checkpoint to one first");
  refuse_foreign(disk, options.from);
  checkpoint::Alone alone;
  checkpoint::Found found = checkpoint::open_path(disk, options.from, options.step, alone);
  for (const std::string& problem : found.problems) std::cerr << "warning: " << problem << "\n";
  MPX_CHECK(found.reader != nullptr, "checkpoint", "there is no checkpoint in ", options.from);
  return std::move(found.reader);
}

std::string to_hf(files::FileSystem& disk, const ConvertOptions& options) {
  const bool from_hf = is_hf_directory(disk, options.from);
  const bool changes = !options.adapters.empty() || !options.quantization.empty() ||
                       (from_hf && hf::read_quantization(disk, options.from).is_used());
  MPX_CHECK(!from_hf || changes, "config", "'", options.from,
            "' is already a Hugging Face directory; use --to checkpoint to make a checkpoint from it");
  hf::ExportOptions how{static_cast<int64_t>(options.shard), std::nullopt, options.quantization};
  if (!options.dtype.empty()) how.dtype = kTypes.at(options.dtype);
  if (is_model_directory(disk, options.from)) {
    const std::string from = find_model_directory(disk, options.from, options.step);
    verify_model_directory(disk, from);
    const config::Config config = directory_config(disk, from, options.adapters);
    const auto tokenizer = from_hf ? directory_run_state(disk, from).side_files : std::vector<checkpoint::SideFile>{};
    const auto weights = foreign::open_run_weights(disk, config);
    hf::MergedWeights merged(*weights, config);
    hf::write_weights_directory(disk, merged, config.model, tokenizer, options.directory, how);
    return from;
  }
  const auto reader = open_checkpoint(disk, options);
  hf::write_directory(disk, *reader, options.directory, how);
  return reader->directory();
}

std::string to_peft(files::FileSystem& disk, const ConvertOptions& options) {
  const auto reader = open_checkpoint(disk, options);
  hf::write_adapters(disk, *reader, options.directory, options.base);
  return reader->directory();
}

struct OpenedRun {
  std::string from;
  checkpoint::RunState state;
  checkpoint::OpenSource open;
};

OpenedRun open_run(files::FileSystem& disk, const ConvertOptions& options) {
  if (is_model_directory(disk, options.from)) {
    const std::string from = find_model_directory(disk, options.from, options.step);
    verify_model_directory(disk, from);
    for (const std::string& note : conversion_notes(disk, from)) std::cerr << "warning: " << note << "\n";
    return {from, directory_run_state(disk, from, options.adapters),
            [&disk, config = directory_config(disk, from, options.adapters)] {
              return foreign::open_run_weights(disk, config);
            }};
  }
  const auto reader = open_checkpoint(disk, options);  // also verifies it
  const std::string from = reader->directory();
  return {from, saved_run_state(disk, *reader),
          [&disk, from] { return std::make_unique<checkpoint::Reader>(disk, from); }};
}

std::string to_checkpoint(files::FileSystem& disk, const ConvertOptions& options) {
  const OpenedRun run = open_run(disk, options);
  const bool weights_only = options.weights_only || is_hf_directory(disk, run.from);
  const auto wanted = [&](const files::TensorForm& tensor) {
    return !weights_only || tensor.kind == "weight" || tensor.kind == "buffer";
  };
  disk.make_whole(options.directory, [&](const std::string& part) {
    checkpoint::rewrite(disk, run.open, part, run.state, options.ranks, wanted);
    disk.replace_file(files::join_path(part, "run.yaml"), run.state.config_yaml);
  });
  return run.from;
}

std::string to_torch_dist(files::FileSystem& disk, const ConvertOptions& options) {
  const OpenedRun run = open_run(disk, options);
  const auto source = run.open();
  for (const std::string& note :
       mcore::write_checkpoint(disk, *source, run.state, options.weights_only, options.directory))
    std::cerr << "warning: " << note << "\n";
  return run.from;
}

}  // namespace

int run_convert(const std::vector<std::string>& arguments) {
  CLI::App app(
      "--to hf writes the weights of a checkpoint of any layout as a directory that Hugging Face transformers\n"
      "load: config.json, safetensors, and the tokenizer stored in the checkpoint. Adapters (peft.lora_rank)\n"
      "are merged into the weights; --to peft writes only the adapters, as PEFT loads them.\n"
      "--to checkpoint writes a checkpoint. From a Hugging Face directory, it contains the weights and the "
      "tokenizer;\n"
      "from a checkpoint of Megatron-LM (torch_dist or torch format, any layout), the weights.\n"
      "train, eval and generate also read both directly: --model.from DIR. From a checkpoint, it contains the same\n"
      "tensors in other files. --to torch_dist writes a checkpoint that Megatron-LM loads.",
      "metroplex convert");
  ConvertOptions options;
  app.add_option(
         "FROM", options.from,
         "a checkpoint, or a folder of checkpoints (uses the newest, or that of --ckpt-step), of Metroplex or of\n"
         "Megatron-LM; with --to checkpoint or torch_dist, or if its weights are quantized, also a Hugging Face\n"
         "directory")
      ->required();
  app.add_option("--to", options.to, "hf, peft, checkpoint or torch_dist")
      ->required()
      ->check(CLI::IsMember({"hf", "peft", "checkpoint", "torch_dist"}));
  app.add_option("DIR", options.directory, "the directory to write; must not exist")->required();
  app.add_option("--ckpt-step", options.step, "iteration of the checkpoint; 0: the newest")->check(below_0);
  app.add_option("--max-shard-size", options.shard, "hf: maximum size of a weight file, such as 400MB; default 5GB")
      ->transform(CLI::AsSizeValue(false))
      ->check([](const std::string& bytes) {
        const std::string wrong = not_above_0(bytes);
        return wrong.empty() ? wrong : wrong + "; give a size like 5GB or 400MB";
      });
  app.add_option("--dtype", options.dtype,
                 "hf: fp32, bf16 or fp16; default: the dtype in the checkpoint. Other types are rounded from\n"
                 "the main parameters (fp32) if the checkpoint has them")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.add_option("--quantization", options.quantization,
                 "hf: fp8 (E4M3 in blocks of 128 x 128) or mxfp4 (experts of gpt_oss); default: none. Linear layers\n"
                 "are rounded from the main parameters (fp32) if the checkpoint has them")
      ->check(CLI::IsMember({"fp8", "mxfp4"}));
  app.add_option("--adapter", options.adapters,
                 "hf, checkpoint: a directory of adapters that PEFT saved for the model in FROM. hf merges them");
  app.add_option("--base", options.base, "peft: the model that the adapters belong to, for adapter_config.json");
  app.add_option("--ranks", options.ranks, "checkpoint: number of files, of about the same size; default 1")
      ->check(CLI::Range(1, kMaxRanks));
  app.add_flag("--weights-only", options.weights_only, "checkpoint, torch_dist: leave out the optimizer state");
  app.footer(
      "Examples:\n  metroplex convert checkpoints/llama_tiny --to hf llama_tiny_hf\n"
      "  metroplex convert checkpoints/adapted --to peft adapters --base llama_tiny_hf\n"
      "  metroplex convert checkpoints/llama_tiny --to checkpoint eight_files --ranks 8\n"
      "  metroplex convert llama_tiny_hf --to checkpoint again");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  const std::pair<const char*, std::vector<std::string>> only_for[] = {
      {"--max-shard-size", {"hf"}}, {"--dtype", {"hf"}},         {"--quantization", {"hf"}},
      {"--base", {"peft"}},         {"--ranks", {"checkpoint"}}, {"--weights-only", {"checkpoint", "torch_dist"}}};
  for (const auto& [option, targets] : only_for) {
    const auto is_for = [&options](const std::string& to) { return to == options.to; };
    MPX_CHECK(app.count(option) == 0 || std::any_of(targets.begin(), targets.end(), is_for), "config", option,
              " is for --to ", base::join(targets, " or "), ", not for --to ", options.to, "; leave it out");
  }
  MPX_CHECK(!options.from.empty(), "config", "FROM is '': name a checkpoint, a folder of them, or (with --to ",
            "checkpoint) a Hugging Face directory; is a variable not set?");
  MPX_CHECK(base::is_utf8(options.base), "config", "--base = ", options.base,
            ": must be UTF-8, for adapter_config.json; choose another name or path");
  files::PosixFileSystem disk;
  check_target(disk, options);
  const std::string from = options.to == "hf"           ? to_hf(disk, options)
                           : options.to == "peft"       ? to_peft(disk, options)
                           : options.to == "checkpoint" ? to_checkpoint(disk, options)
                                                        : to_torch_dist(disk, options);
  std::cout << "wrote " << options.directory << " from " << from << "\n";
  return kExitOk;
}

}  // namespace metroplex::apps
