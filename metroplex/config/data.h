// Where samples come from, as in Megatron's GPT dataset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::config {

struct Data {
  std::vector<std::string> data_path;        // PREFIX, or WEIGHT PREFIX pairs; empty with mock_data
  std::vector<std::string> train_data_path;  // blend per split: excludes data_path and split
  std::vector<std::string> valid_data_path;
  std::vector<std::string> test_data_path;
  std::string split = "969, 30, 1";
  bool mock_data = false;
  std::string data_cache_path;          // empty: cache/ beside the first dataset
  std::string tokenizer_type = "none";  // none | bytes | sentencepiece | bpe (tokenizer.json or vocab+merges)
  std::string tokenizer_model;
  std::string vocab_file;
  std::string merge_file;
  std::string dataloader_type = "single";  // single | cyclic
  bool data_sharding = true;               // cyclic only
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
  int64_t num_workers = 1;  // threads that read ahead
};

}  // namespace metroplex::config
