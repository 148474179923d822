// Tokenizes text into an indexed dataset. The input is divided into ranges of some megabytes. All cores tokenize one
// range, and the result is stored in PREFIX.preprocess/ as a part file with a note of its end. Finally the part files
// become PREFIX.bin and PREFIX.idx. A killed run resumes after the last complete part file, with a byte-identical
// result. Notes of another job are discarded. PREFIX.preprocess.json, next to the result, identifies its job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/documents.h"
#include "files/file_system.h"

namespace metroplex::data {

// A chat, and a 0/1 mark per token that is 1 for learned tokens.
struct MarkedTokens {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;
};

struct Encoder {
  std::function<std::vector<int32_t>(std::string_view)> encode;  // called from several threads concurrently
  // For chats, replaces `encode`: maps a line of JSON to the chat's sequences, each a document. PREFIX_loss_mask
  // (token_source.h) is then written next to PREFIX.
  std::function<std::vector<MarkedTokens>(std::string_view)> encode_chat;
  std::string chat_sequences = "chats";  // name of such sequences in messages
  int64_t longest_chat = 0;              // in tokens; longer sequences are truncated; 0: no limit
  bool drops_long_chats = false;         // drops longer sequences instead
  int64_t vocab_size = 0;                // determines the dtype of the tokens
  int64_t eod = -1;                      // -1: none
  // Ids added before and after the ids of a text. An empty text stays empty.
  std::vector<int32_t> before, after;
  std::string tokenizer;    // identifies the tokenizer by content; merged datasets must agree
  std::string description;  // a changed description is another job
};

struct PreprocessProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // of the input
  int64_t documents = 0, empty_documents = 0, tokens = 0;
  int64_t chats = 0;          // with a document in `documents`; 0 for text
  int64_t learned = 0;        // learned tokens of chats; a sequence without any counts as empty
  int64_t long_chats = 0;     // sequences that are truncated or dropped
  int64_t bytes_resumed = 0;  // completed by an earlier run
  int64_t surrogates = 0;     // unpaired escaped surrogates, read as U+FFFD
  int64_t hidden_files = 0;   // in folders; not read
};

struct PreprocessOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  TextFormat format = TextFormat::by_name;
  std::string json_key = "text";
  bool split_documents = false;  // text files: a blank line ends a document
  bool append_eod = false;
  bool overwrite = false;  // replaces a dataset of another job with this prefix; otherwise an error
  int workers = 1;
  // Several runs can share an input. Each processes the documents that start in its share of the bytes. Their
  // results, merged in order, equal the result of one run.
  int64_t partition = 0, num_partitions = 1;
  int64_t part_bytes = 0;                                   // 0: by the size of the input, 8 to 128 MiB
  std::function<void(const PreprocessProgress&)> progress;  // after every few documents, by one thread at a time
};

// Skips and counts documents without tokens. Throws base::Error and leaves no output if the input has no token or is
// not UTF-8 or JSON. Also throws if another run uses the prefix, or a dataset of another job exists.
PreprocessProgress preprocess(files::FileSystem& disk, const PreprocessOptions& options, const Encoder& encoder);

// Returns the tokenizer (Encoder::tokenizer) of a finished dataset from PREFIX.preprocess.json; "" if not recorded.
std::string recorded_tokenizer(files::FileSystem& disk, const std::string& prefix);

// Concatenates datasets of one token dtype into a new one. Either all of them contain chats or none; loss masks of
// chats are merged too. Throws base::Error if two of them record different tokenizers in PREFIX.preprocess.json. Also
// throws if the result would replace an input, however its path is spelled. The result has no such file.
void merge_datasets(files::FileSystem& disk, const std::vector<std::string>& prefixes,
                    const std::string& output_prefix);

}  // namespace metroplex::data
