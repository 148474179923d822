// metroplex tokenizer: trains, applies and displays tokenizers.
#include <cstdio>
#include <iostream>
#include <iterator>
#include <sstream>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "apps/command.h"
#include "apps/console.h"
#include "base/error.h"
#include "data/documents.h"
#include "files/file_system.h"
#include "text/tokenizer.h"
#include "text/sentencepiece_train.h"

namespace metroplex::apps {
namespace {

struct Source {
  std::string type, model, vocab_file, merge_file, invalid_utf8 = "error";
};

struct TokenizerOptions {
  Source source;
  text::SentencePieceTraining training;
  std::vector<std::string> inputs;
  std::string output;
  std::string text;
  std::vector<int32_t> ids;
  bool overwrite = false, with_special = false, skip_special = false, by_line = false, json = false;
};

void add_source(CLI::App& command, Source& source) {
  command.add_option("--type", source.type, "none, bytes, sentencepiece or bpe; default: detected from the file");
  command.add_option("--model", source.model,
                     "tokenizer.json, tokenizer.model, or the folder of one; for type none, the vocabulary size");
  command.add_option("--vocab-file", source.vocab_file, "GPT-2's vocab.json");
  command.add_option("--merge-file", source.merge_file, "GPT-2's merges.txt");
  command.add_option("--invalid-utf8", source.invalid_utf8, "for text that is not UTF-8: error or replace")
      ->capture_default_str();
}

std::unique_ptr<text::Tokenizer> load(const Source& source) {
  return text::load_tokenizer(source.type, source.model, source.vocab_file, source.merge_file,
                              text::invalid_utf8_from_name(source.invalid_utf8));
}

std::string read_input(const std::string& path) {
  if (path != "-") return files::PosixFileSystem().read(path);
  return {std::istreambuf_iterator<char>(std::cin), {}};
}

void run_train(const TokenizerOptions& options) {
  files::PosixFileSystem disk;
  MPX_CHECK(!options.output.empty() && !options.output.ends_with('/'), "config", "--output '", options.output,
            "' is not a file name; give a path like data/tokenizer, for OUTPUT.model");
  const std::string path = options.output + ".model";
  MPX_CHECK(options.overwrite || !disk.exists(path), "files", "'", path,
            "' already exists, and only it can decode the ids that it produced; choose another --output, or give "
            "--overwrite to replace it");
  disk.make_directories(files::parent_directory(path));
  std::vector<std::string> inputs;
  for (const data::DocumentFile& file : data::open_documents(disk, options.inputs, data::TextFormat::text))
    inputs.push_back(file.path);
  const std::string model = text::train_sentencepiece_on_files(options.training, inputs);
  disk.write_output(path, model);
  const auto tokenizer = text::load_tokenizer("sentencepiece", path);
  std::cout << fmt::format("{}: {} with {} ids, end of document {}\n", path, options.training.model_type,
                           tokenizer->vocab_size(), tokenizer->eod().value_or(-1));
}

void print_ids(const text::Tokenizer& tokenizer, const TokenizerOptions& options, std::string_view text) {
  const auto ids = options.with_special ? tokenizer.encode_with_special(text) : tokenizer.encode(text);
  fmt::print("{}\n", fmt::join(ids, " "));
}

void run_encode(const TokenizerOptions& options) {
  const auto tokenizer = load(options.source);
  if (!options.text.empty()) return print_ids(*tokenizer, options, options.text);
  for (const std::string& path : options.inputs.empty() ? std::vector<std::string>{"-"} : options.inputs) {
    const std::string content = read_input(path);
    if (!options.by_line) {
      print_ids(*tokenizer, options, content);
      continue;
    }
    std::istringstream lines(content);
    for (std::string line; std::getline(lines, line);) print_ids(*tokenizer, options, line);
  }
}

void run_decode(const TokenizerOptions& options) {
  const auto tokenizer = load(options.source);
  std::vector<int32_t> ids = options.ids;
  if (ids.empty()) {
    const std::string content = read_input(options.inputs.empty() ? "-" : options.inputs[0]);
    ids = text::load_tokenizer("none", "2147483648")->encode(content);
  }
  for (const int32_t id : ids) {
    MPX_CHECK(!tokenizer->id_to_token(id).empty(), "text", "the id ", id, " is not one of the ",
              tokenizer->vocab_size(), " tokens of this tokenizer (", tokenizer->name(), "), whose ids are 0 to ",
              tokenizer->vocab_size() - 1, "; are these ids of another tokenizer?");
  }
  const std::string out = options.skip_special ? tokenizer->decode_skip_special(ids) : tokenizer->decode(ids);
  write_text(out + "\n");
}

void run_info(const TokenizerOptions& options) {
  const auto tokenizer = load(options.source);
  const std::pair<const char*, std::optional<int32_t>> special[] = {
      {"eod", tokenizer->eod()}, {"bos", tokenizer->bos()}, {"eos", tokenizer->eos()}, {"pad", tokenizer->pad()}};
  if (options.json) {
    nlohmann::json out{{"type", tokenizer->name()}, {"vocab_size", tokenizer->vocab_size()}};
    for (const auto& [name, id] : special) out[name] = id ? nlohmann::json(*id) : nlohmann::json();
    std::cout << json_text(out, -1) << "\n";
    return;
  }
  std::cout << fmt::format("type        {}\nvocab_size  {}\n", tokenizer->name(), tokenizer->vocab_size());
  for (const auto& [name, id] : special) {
    if (id) std::cout << fmt::format("{:<12}{}  {}\n", name, *id, tokenizer->id_to_token(*id));
  }
}

CLI::App* add_train(CLI::App& app, TokenizerOptions& options) {
  CLI::App* train = app.add_subcommand("train", "train a sentencepiece model on text files, one sentence a line");
  train->add_option("--input", options.inputs, "files of UTF-8 text")->required();
  train->add_flag("--overwrite", options.overwrite, "replace OUTPUT.model if it exists");
  train->add_option("--output", options.output, "writes OUTPUT.model; creates its folder if needed")->required();
  train->add_option("--vocab-size", options.training.vocab_size, "ids, including 256 bytes and 3 control pieces")
      ->capture_default_str();
  train->add_option("--model-type", options.training.model_type, "bpe or unigram")->capture_default_str();
  train
      ->add_option("--character-coverage", options.training.character_coverage,
                   "share of characters that get their own piece")
      ->capture_default_str();
  train
      ->add_option("--normalization", options.training.normalization,
                   "identity, nmt_nfkc, nfkc, nmt_nfkc_cf or nfkc_cf")
      ->capture_default_str();
  train
      ->add_option("--max-bytes", options.training.max_bytes,
                   "maximum bytes of text; of a larger input, every n-th line is used")
      ->capture_default_str();
  train->add_option("--threads", options.training.num_threads, "threads of the trainer")
      ->capture_default_str()
      ->check(not_above_0);
  return train;
}

CLI::App* add_use(CLI::App& app, TokenizerOptions& options, const char* name, const char* description) {
  CLI::App* command = app.add_subcommand(name, description);
  add_source(*command, options.source);
  return command;
}

}  // namespace

int run_tokenizer(const std::vector<std::string>& arguments) {
  CLI::App app{
      "Trains tokenizers and uses them: text to ids and back.\n\n"
      "  metroplex tokenizer train --input corpus.txt --vocab-size 4096 --output my\n"
      "  metroplex tokenizer encode --model my.model --text 'Hello, world'\n"
      "  metroplex tokenizer decode --model llama/tokenizer.json --ids 1 15043 29892\n"
      "  metroplex tokenizer info --model folder\n",
      "metroplex tokenizer"};
  app.require_subcommand(1);
  TokenizerOptions options;
  CLI::App* train = add_train(app, options);
  CLI::App* encode = add_use(app, options, "encode", "text to ids, one line per text");
  encode->add_option("--text", options.text, "the text itself");
  encode->add_option("--input", options.inputs, "text files; - or no file reads standard input");
  encode->add_flag("--lines", options.by_line, "every line is a separate text");
  encode->add_flag("--special", options.with_special, "add bos and eos as the tokenizer does");
  CLI::App* decode = add_use(app, options, "decode", "ids to text");
  decode->add_option("--ids", options.ids, "the ids themselves");
  decode->add_option("--input", options.inputs, "a file of ids; - or no file reads standard input")->expected(1);
  decode->add_flag("--skip-special", options.skip_special, "leave special tokens out");
  CLI::App* info = add_use(app, options, "info", "type, vocabulary size and special ids");
  info->add_flag("--json", options.json, "print JSON");

  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;
  if (train->parsed()) run_train(options);
  if (encode->parsed()) run_encode(options);
  if (decode->parsed()) run_decode(options);
  if (info->parsed()) run_info(options);
  return 0;
}

}  // namespace metroplex::apps
