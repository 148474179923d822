// A rank's captured graphs, as lines for the log.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace metroplex::train {

struct Assembly;

// The number of graphs captured so far.
int64_t captured_graphs(const Assembly& assembly);
// Of this rank: number, operations, memory, and what was predicted of the pool. Nothing where nothing captures.
std::vector<std::string> graph_lines(const Assembly& assembly, int64_t num_microbatches);

// What of this rank's stages is captured, a line a chunk, from the first segment to the last: "[...]" are segments of
// one graph, "4 x (...)" blocks that are alike. Nothing where no parts of layers are.
std::vector<std::string> scope_lines(const Assembly& assembly);

}  // namespace metroplex::train
