// metroplex convert: a checkpoint in the format of another program. It needs no tensors: bytes are put in another
// order.
#include <iostream>
#include <map>

#include "apps/command.h"
#include "apps/commands.h"
#include "base/error.h"
#include "checkpoint/exchange.h"
#include "checkpoint/load.h"
#include "files/file_system.h"
#include "hf/directory.h"

namespace metroplex::apps {

static const std::map<std::string, files::Dtype> kTypes{
    {"fp32", files::Dtype::kF32}, {"bf16", files::Dtype::kBF16}, {"fp16", files::Dtype::kF16}};

int run_convert(const std::vector<std::string>& arguments) {
  CLI::App app(
      "Writes the weights of a checkpoint, whatever layout saved it, as a directory that Hugging Face's "
      "transformers\n"
      "load: config.json, safetensors, and the tokenizer that the checkpoint carries. The way back needs no "
      "command:\n"
      "train, eval and generate take --model.from DIR.",
      "metroplex convert");
  std::string run, format, directory, dtype;
  int64_t step = 0;
  uint64_t shard = uint64_t{5} << 30;
  app.add_option("RUN", run, "a checkpoint, or a folder of them (the newest is taken, or that of --ckpt-step)")
      ->required();
  app.add_option("--to", format, "hf")->required()->check(CLI::IsMember({"hf"}));
  app.add_option("DIR", directory, "the directory to write; must not be there")->required();
  app.add_option("--ckpt-step", step, "iteration of the checkpoint; 0: the newest")->check(CLI::NonNegativeNumber);
  app.add_option("--max-shard-size", shard,
                 "bytes of a weight file, beyond which there are several: 5GB (left out), 400MB")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::PositiveNumber);
  app.add_option(
         "--dtype", dtype,
         "fp32, bf16 or fp16; left out: as the checkpoint holds the weights. Other types are rounded from the\n"
         "main parameters (fp32), where the checkpoint has them")
      ->check(CLI::IsMember({"fp32", "bf16", "fp16"}));
  app.footer("Example:\n  metroplex convert checkpoints/llama_tiny --to hf llama_tiny_hf");
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  files::PosixFileSystem disk;
  checkpoint::Alone alone;
  checkpoint::Found found = checkpoint::open_path(disk, run, step, alone);
  for (const std::string& problem : found.problems) std::cerr << "warning: " << problem << "\n";
  MPX_CHECK(found.reader != nullptr, "checkpoint", "there is no checkpoint in ", run);
  hf::ExportOptions options{static_cast<int64_t>(shard)};
  if (!dtype.empty()) options.dtype = kTypes.at(dtype);
  hf::write_directory(disk, *found.reader, directory, options);
  std::cout << "wrote " << directory << " from " << found.reader->directory() << "\n";
  return kExitOk;
}

}  // namespace metroplex::apps
