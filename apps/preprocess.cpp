// metroplex preprocess: converts text and JSON lines to an indexed dataset.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <iostream>
#include <optional>
#include <thread>

#include <unistd.h>

#include <fmt/format.h>

#include "apps/command.h"
#include "apps/console.h"
#include "base/error.h"
#include "data/preprocess.h"
#include "files/checksum.h"
#include "files/file_system.h"
#include "text/chat_report.h"
#include "text/chat_template.h"
#include "text/end_of_turn.h"
#include "text/tokenizer.h"
#include "text/tokenizer_files.h"

namespace metroplex::apps {

namespace {

struct Arguments {
  data::PreprocessOptions options;
  std::vector<std::string> merge;
  std::string tokenizer_type, tokenizer_model, vocab_file, merge_file, partition, format = "auto";
  bool chat = false, no_special_tokens = false;
  std::string chat_template, learn = "all", long_chats = "cut";
  int64_t seq_length = 0;
  std::vector<std::string> variables;
};

void declare(CLI::App& app, Arguments& arguments) {
  app.description(
      "Turns text into PREFIX.bin and PREFIX.idx, the format that training reads.\n"
      "A text file is one document; a .jsonl file contains one document per line. All cores tokenize. A killed run\n"
      "continues where it stopped when it is started again with the same arguments, and writes the same bytes.\n\n"
      "  metroplex preprocess --input books/*.txt --tokenizer-type sentencepiece --tokenizer-model spm.model \\\n"
      "      --append-eod --output-prefix data/books\n"
      "  metroplex preprocess --chat --input chats.jsonl --tokenizer-model DIR --output-prefix data/chats\n"
      "  metroplex preprocess --input web.jsonl --partition 0/2 ... --output-prefix data/web0    (and 1/2 "
      "elsewhere)\n"
      "  metroplex preprocess --merge data/web0 data/web1 --output-prefix data/web");
  app.add_option("--input", arguments.options.inputs, "files, or folders of files")->type_name("FILES");
  app.add_option(
         "--merge", arguments.merge,
         "join finished datasets of one tokenizer instead of reading text.\nDifferent tokenizers are refused "
         "if PREFIX.preprocess.json, which preprocess writes, names them.\nOtherwise, only the width of ids is "
         "compared")
      ->type_name("PREFIXES")
      ->excludes("--input");
  app.add_option("--output-prefix", arguments.options.output_prefix, "writes PREFIX.bin and PREFIX.idx")
      ->type_name("PREFIX")
      ->required();
  app.add_option("--format", arguments.format,
                 "auto: .jsonl, .ndjson and .json are JSON lines, .csv and .tsv are refused, anything else is text")
      ->check(CLI::IsMember({"auto", "text", "jsonl"}))
      ->capture_default_str();
  app.add_option("--json-key", arguments.options.json_key, "the key of the text")->capture_default_str();
  app.add_flag("--split-documents", arguments.options.split_documents, "in text files, a blank line ends a document");
  app.add_option("--tokenizer-type", arguments.tokenizer_type,
                 "none, bytes, sentencepiece or bpe; default: detected from the model");
  app.add_option("--tokenizer-model", arguments.tokenizer_model, "tokenizer.model or tokenizer.json, or their folder")
      ->type_name("PATH");
  app.add_option("--vocab-file", arguments.vocab_file, "GPT-2's vocab.json")->type_name("PATH");
  app.add_option("--merge-file", arguments.merge_file, "GPT-2's merges.txt")->type_name("PATH");
  app.add_flag("--chat", arguments.chat,
               "lines are chats, {\"messages\": [{\"role\": ..., \"content\": ...}, ...]}, formatted by the chat "
               "template of the tokenizer's folder;\nPREFIX_loss_mask marks the tokens of the assistant");
  app.add_option("--chat-template", arguments.chat_template, "a template other than that of the tokenizer's folder")
      ->type_name("FILE");
  app.add_option("--chat-variable", arguments.variables, "a variable for the template; VALUE is JSON or text")
      ->type_name("NAME=VALUE");
  app.add_option("--learn", arguments.learn,
                 "all: all turns of the assistant; last: only the last message; each: all turns, each in a sequence "
                 "that ends with it,\nfor templates that change earlier turns")
      ->check(CLI::IsMember({"all", "last", "each"}))
      ->capture_default_str();
  app.add_option("--seq-length", arguments.seq_length,
                 "train.seq_length of the later run; a chat may have one more token; 0: any length")
      ->check(below_0);
  app.add_option("--long", arguments.long_chats, "cut or drop longer chats; the output counts them")
      ->check(CLI::IsMember({"cut", "drop"}))
      ->capture_default_str();
  app.add_flag("--append-eod", arguments.options.append_eod,
               "put the end-of-document token after every document, if the tokenizer does not add it");
  app.add_flag("--no-special-tokens", arguments.no_special_tokens,
               "leave out the tokens that the tokenizer adds to a text, such as a begin token (tokenizer encode "
               "--special prints them);\nthis is --tokenizer-hf-no-include-special-tokens of Megatron")
      ->excludes("--chat");
  app.add_flag("--overwrite", arguments.options.overwrite, "replace a dataset made from other input or options");
  app.add_option("--workers", arguments.options.workers, "threads; default: all cores")->check(not_above_0);
  app.add_option("--partition", arguments.partition,
                 "process only shard I of N of the input, counted from 0; --merge joins the datasets")
      ->type_name("I/N");
}

void read_partition(const std::string& text, data::PreprocessOptions& options) {
  if (text.empty()) return;
  long long index = 0, count = 0;
  char rest = 0;
  MPX_CHECK(std::sscanf(text.c_str(), "%lld/%lld%c", &index, &count, &rest) == 2 && count >= 1 && index >= 0 &&
                index < count,
            "config", "--partition ", text, ": give I/N with I from 0 to N - 1, like 0/4");
  options.partition = index;
  options.num_partitions = count;
}

// Rewrites one line on a terminal. Otherwise prints a new line every ten seconds.
class ProgressLine {
 public:
  void show(const data::PreprocessProgress& now) {
    const auto time = Clock::now();
    if (time - last_ < (terminal_ ? std::chrono::milliseconds(200) : std::chrono::milliseconds(10000))) return;
    last_ = time;
    const double seconds = std::chrono::duration<double>(time - start_).count();
    const double rate = static_cast<double>(now.bytes_done - now.bytes_resumed) / seconds;
    const double left = rate > 0 ? static_cast<double>(now.bytes_total - now.bytes_done) / rate : 0;
    const double share = now.bytes_total > 0
                             ? 100.0 * static_cast<double>(now.bytes_done) / static_cast<double>(now.bytes_total)
                             : 100.0;
    if (terminal_) write_styled(std::cerr, kClearLine);
    std::cerr << fmt::format("{:5.1f} %  {} documents  {} tokens  {:.1f} MB/s  {:.0f} s left", std::min(share, 100.0),
                             now.documents, now.tokens, rate / 1e6, std::max(left, 0.0))
              << (terminal_ ? "" : "\n") << std::flush;
    shown_ = true;
  }
  void end() {
    if (terminal_ && shown_) write_styled(std::cerr, kClearLine);
  }
  double seconds() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }

 private:
  static constexpr const char* kClearLine = "\r\x1b[K";
  using Clock = std::chrono::steady_clock;
  bool terminal_ = ::isatty(STDERR_FILENO) == 1, shown_ = false;
  Clock::time_point start_ = Clock::now(), last_ = start_;
};

// Returns a checksum of a file, or of the files of a folder without its subfolders (text/tokenizer.h). A retrained
// tokenizer at the same path is a different job.
std::string file_fingerprint(files::FileSystem& disk, const std::string& path) {
  if (path.empty() || !disk.exists(path)) return "";
  if (!disk.is_directory(path)) {
    const files::Bytes bytes = disk.map(path);
    return files::to_hex(files::checksum(bytes.data, bytes.size));
  }
  std::string all;
  for (const std::string& name : disk.list(path)) {
    const std::string file = files::join_path(path, name);
    if (!disk.is_directory(file) && disk.exists(file)) all += name + " " + file_fingerprint(disk, file) + "\n";
  }
  return all;
}

data::Encoder make_encoder(files::FileSystem& disk, const text::Tokenizer& tokenizer, const Arguments& arguments) {
  data::Encoder encoder;
  if (!arguments.chat && !arguments.no_special_tokens) {
    text::SpecialTokens special = tokenizer.special_tokens();
    encoder.before = std::move(special.before);
    encoder.after = std::move(special.after);
  }
  encoder.encode = [&tokenizer](std::string_view text) { return tokenizer.encode(text); };
  encoder.vocab_size = tokenizer.vocab_size();
  encoder.eod = tokenizer.eod() ? *tokenizer.eod() : -1;
  encoder.tokenizer = text::identify_tokenizer(
      tokenizer, text::read_tokenizer_files(arguments.tokenizer_type, arguments.tokenizer_model, arguments.vocab_file,
                                            arguments.merge_file));
  encoder.description = tokenizer.name() + " " + arguments.tokenizer_type;
  for (const std::string& path : {arguments.tokenizer_model, arguments.vocab_file, arguments.merge_file})
    encoder.description += fmt::format(" '{}' {}", path, file_fingerprint(disk, path));
  if (arguments.no_special_tokens) encoder.description += " without special tokens";
  return encoder;
}

std::string tokenizer_folder(files::FileSystem& disk, const Arguments& arguments) {
  const std::string& model = arguments.tokenizer_model;
  return model.empty() || disk.is_directory(model) ? model : files::parent_directory(model);
}

// Returns the template of --chat, which must outlive the encoder.
text::ChatTemplate read_template(const std::string& folder, const Arguments& arguments) {
  std::optional<text::ChatTemplate> found;
  if (!arguments.chat_template.empty()) found.emplace(text::read_chat_template(arguments.chat_template, folder));
  else if (!folder.empty()) found = text::find_chat_template(folder);
  MPX_CHECK(
      found, "config", "--chat: the tokenizer has no chat template",
      folder.empty() ? "" : " in '" + folder + "' (chat_template.jinja, or chat_template in tokenizer_config.json)",
      "; give --chat-template FILE");
  for (const std::string& variable : arguments.variables) found->set_variable(variable);
  return std::move(*found);
}

std::vector<int32_t> end_tokens(const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                                const std::string& folder) {
  std::vector<int32_t> ids;
  for (const int64_t id : text::configured_end_tokens(folder)) ids.push_back(static_cast<int32_t>(id));
  if (tokenizer.eos()) ids.push_back(*tokenizer.eos());
  if (const auto id = text::end_of_turn(chat_template, tokenizer)) ids.push_back(*id);
  return ids;
}

text::Learned parse_learned(const std::string& learn) {
  return learn == "last" ? text::Learned::last : learn == "each" ? text::Learned::each : text::Learned::all;
}

void encode_chats(data::Encoder& encoder, const text::Tokenizer& tokenizer, const text::ChatTemplate& chat_template,
                  text::ChatReport& report, const Arguments& arguments) {
  const text::Learned learned = parse_learned(arguments.learn);
  if (learned == text::Learned::each) encoder.chat_sequences = "sequences";
  encoder.longest_chat = arguments.seq_length > 0 ? arguments.seq_length + 1 : 0;
  encoder.drops_long_chats = arguments.long_chats == "drop";
  const size_t longest = arguments.seq_length > 0 ? static_cast<size_t>(encoder.longest_chat) : SIZE_MAX;
  const bool drops = encoder.drops_long_chats;
  encoder.encode_chat = [&tokenizer, &chat_template, &report, learned, longest, drops](std::string_view line) {
    text::Chat chat = text::parse_chat(line);
    const std::vector<text::ChatText> texts = text::read_learned_texts(chat_template, chat, learned);
    report.add_chat(chat, texts.back());
    std::vector<data::MarkedTokens> sequences;
    for (const text::ChatText& text : texts) {
      text::ChatTokens tokens = text::chat_tokens(tokenizer, text);
      const bool dropped = drops && tokens.ids.size() > longest;
      report.add_turns(text, tokens, dropped ? 0 : std::min(longest, tokens.ids.size()));
      sequences.push_back({std::move(tokens.ids), std::move(tokens.learned)});
    }
    return sequences;
  };
  encoder.description +=
      fmt::format(" chats, learn {}, template {}", arguments.learn,
                  files::to_hex(files::checksum(chat_template.source().data(), chat_template.source().size())));
  for (const std::string& variable : arguments.variables) encoder.description += " " + variable;
}

void print_summary(const data::PreprocessProgress& done, const data::Encoder& encoder, const Arguments& arguments,
                   double seconds) {
  const double megabytes = static_cast<double>(done.bytes_done - done.bytes_resumed) / 1e6;
  if (done.bytes_resumed > 0)
    std::cout << fmt::format("continued after {:.1f} MB of an earlier run\n",
                             static_cast<double>(done.bytes_resumed) / 1e6);
  std::cout << fmt::format("{}.bin and .idx: {} documents{}, {} tokens", arguments.options.output_prefix,
                           done.documents, arguments.learn == "each" ? fmt::format(" from {} chats", done.chats) : "",
                           done.tokens);
  if (arguments.chat) std::cout << fmt::format(", {} of them learned", done.learned);
  if (done.long_chats > 0)
    std::cout << fmt::format(" ({} {} of more than {} tokens {})", done.long_chats, encoder.chat_sequences,
                             encoder.longest_chat, encoder.drops_long_chats ? "left out" : "cut");
  if (done.empty_documents > (encoder.drops_long_chats ? done.long_chats : 0))
    std::cout << fmt::format(" ({} {} left out)",
                             done.empty_documents - (encoder.drops_long_chats ? done.long_chats : 0),
                             arguments.chat ? encoder.chat_sequences + " with nothing to learn" : "empty documents");
  if (done.surrogates > 0) std::cout << fmt::format(" ({} unpaired surrogates read as U+FFFD)", done.surrogates);
  if (done.hidden_files > 0) std::cout << fmt::format(" ({} hidden files skipped)", done.hidden_files);
  std::cout << fmt::format("; {:.1f} MB in {:.1f} s, {:.2f} MB/s\n", megabytes, seconds,
                           megabytes / std::max(seconds, 1e-9));
}

}  // namespace

int run_preprocess(const std::vector<std::string>& arguments) {
  CLI::App app{"", "metroplex preprocess"};
  Arguments a;
  a.options.workers = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  declare(app, a);
  int exit_code = 0;
  if (!parse(app, arguments, exit_code)) return exit_code;

  files::PosixFileSystem disk;
  if (!a.merge.empty()) {
    for (const char* end : {".bin", ".idx"}) {
      const std::string file = a.options.output_prefix + end;
      MPX_CHECK(a.options.overwrite || !disk.exists(file), "data", "'", file,
                "' already exists; choose another --output-prefix, or give --overwrite to replace that dataset");
    }
    data::merge_datasets(disk, a.merge, a.options.output_prefix);
    std::cout << fmt::format("{}.bin and .idx: {} datasets joined\n", a.options.output_prefix, a.merge.size());
    return 0;
  }
  read_partition(a.partition, a.options);
  a.options.format = a.format == "text"    ? data::TextFormat::text
                     : a.format == "jsonl" ? data::TextFormat::jsonl
                                           : data::TextFormat::by_name;
  MPX_CHECK(!a.tokenizer_type.empty() || !a.tokenizer_model.empty(), "config",
            "no tokenizer; give --tokenizer-type (bytes needs no model) or --tokenizer-model");
  const auto tokenizer = text::load_tokenizer(a.tokenizer_type, a.tokenizer_model, a.vocab_file, a.merge_file);
  ProgressLine line;
  a.options.progress = [&line](const data::PreprocessProgress& now) { line.show(now); };
  data::Encoder encoder = make_encoder(disk, *tokenizer, a);
  std::optional<text::ChatTemplate> chat_template;
  std::optional<text::ChatReport> report;
  const bool chat_options = !a.chat_template.empty() || !a.variables.empty() || a.learn != "all" ||
                            a.seq_length > 0 || a.long_chats != "cut";
  MPX_CHECK(a.chat || !chat_options, "config",
            "--chat-template, --chat-variable, --learn, --seq-length and --long require --chat; give it too");
  if (a.chat) {
    MPX_CHECK(a.format != "text", "config", "--format text: chats are JSON lines; leave it out");
    a.options.format = data::TextFormat::jsonl;
    const std::string folder = tokenizer_folder(disk, a);
    chat_template.emplace(read_template(folder, a));
    report.emplace(*chat_template, *tokenizer, end_tokens(*tokenizer, *chat_template, folder));
    encode_chats(encoder, *tokenizer, *chat_template, *report, a);
  }
  const auto done = data::preprocess(disk, a.options, encoder);
  line.end();
  print_summary(done, encoder, a, line.seconds());
  for (const std::string& fact : report ? report->lines() : std::vector<std::string>{})
    std::cerr << "warning: " << fact << "\n";
  return 0;
}

}  // namespace metroplex::apps
