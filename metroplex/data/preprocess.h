// Tokenizes text into an indexed dataset. The input is cut into parts of some megabytes; all cores tokenize one part,
// which is stored in PREFIX.preprocess/ with a note of where it ended. At the end the parts become PREFIX.bin and
// PREFIX.idx. A run that was killed resumes after the last complete part, with a byte-identical result; notes of
// another job are discarded. PREFIX.preprocess.json, beside the result, identifies its job.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "data/documents.h"
#include "files/file_system.h"

namespace metroplex::data {

// A chat, and which of its tokens are learned: 1 or 0 each.
struct MarkedTokens {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learned;
};

struct Encoder {
  std::function<std::vector<int32_t>(std::string_view)> encode;  // called from several threads at once
  // For chats, in place of `encode`: maps a line of JSON to the chat's sequences, each a document. PREFIX_loss_mask
  // (token_source.h) is then written next to PREFIX.
  std::function<std::vector<MarkedTokens>(std::string_view)> encode_chat;
  std::string chat_sequences = "chats";  // the name of such sequences in messages
  int64_t longest_chat = 0;              // of a sequence in tokens; of longer ones the end is cut; 0: any
  bool drops_long_chats = false;         // or all of them is left out
  int64_t vocab_size = 0;                // determines the dtype of the tokens
  int64_t eod = -1;                      // -1: none
  // Ids that are added before and after the ids of a text. An empty text stays empty.
  std::vector<int32_t> before, after;
  std::string tokenizer;    // which by its content, in words; datasets are merged of one
  std::string description;  // a changed description is another job
};

struct PreprocessProgress {
  int64_t bytes_done = 0, bytes_total = 0;  // of input
  int64_t documents = 0, empty_documents = 0, tokens = 0;
  int64_t chats = 0;          // with a document among `documents`; 0 for text
  int64_t learned = 0;        // of the tokens of chats; a sequence in which none is learned counts as empty
  int64_t long_chats = 0;     // sequences that are cut, or left out
  int64_t bytes_resumed = 0;  // done by an earlier run
  int64_t surrogates = 0;     // escaped surrogates without a pair, read as U+FFFD
  int64_t hidden_files = 0;   // of folders; not read
};

struct PreprocessOptions {
  std::vector<std::string> inputs;
  std::string output_prefix;
  TextFormat format = TextFormat::by_name;
  std::string json_key = "text";
  bool split_documents = false;  // text files: a blank line ends a document
  bool append_eod = false;
  bool overwrite = false;  // replaces a dataset of another job under the prefix; else that is an error
  int workers = 1;
  // Several runs can share an input: each takes the documents that begin in its share of the bytes, and their
  // results, merged in order, are those of one run.
  int64_t partition = 0, num_partitions = 1;
  int64_t part_bytes = 0;                                   // 0: by the size of the input, 8 to 128 MiB
  std::function<void(const PreprocessProgress&)> progress;  // after every few documents, by one thread at a time
};

// Documents without a token are skipped and counted. Throws base::Error, leaving no output, when the input has no
// token at all, is not UTF-8 or not JSON, when another run works on the same prefix, or when a dataset of another job
// exists.
PreprocessProgress preprocess(files::FileSystem& disk, const PreprocessOptions& options, const Encoder& encoder);

// The tokenizer (Encoder::tokenizer) of a finished dataset by PREFIX.preprocess.json; "" where it is not recorded.
std::string recorded_tokenizer(files::FileSystem& disk, const std::string& prefix);

// Concatenates datasets, all of one token dtype, into a new one; with their loss masks, where they hold chats, which
// all of them do or none. Throws base::Error where PREFIX.preprocess.json of two of them names different tokenizers,
// and where the result would take the place of one of them, however it is spelled; the result has no such file.
void merge_datasets(files::FileSystem& disk, const std::vector<std::string>& prefixes,
                    const std::string& output_prefix);

}  // namespace metroplex::data
