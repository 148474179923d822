// Where samples come from, as in Megatron's GPT dataset.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "config/choice.h"

namespace metroplex::config {

enum class TokenizerType { none, bytes, sentencepiece, bpe };
template <>
inline constexpr Word<TokenizerType> kWords<TokenizerType>[] = {{TokenizerType::none, "none"},
                                                                {TokenizerType::bytes, "bytes"},
                                                                {TokenizerType::sentencepiece, "sentencepiece"},
                                                                {TokenizerType::bpe, "bpe"}};

enum class Dataloader { single, cyclic };
template <>
inline constexpr Word<Dataloader> kWords<Dataloader>[] = {{Dataloader::single, "single"},
                                                          {Dataloader::cyclic, "cyclic"}};

// Its keys, each with type, default and help: data_keys.inc.
struct Data {
#define KEY(type, name, value, limits, help) type name = value;
#include "config/data_keys.inc"
#undef KEY
};

}  // namespace metroplex::config
