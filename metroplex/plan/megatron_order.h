// Megatron's order of work on a pipeline rank as plain numbers: how many forwards run before the first backward,
// the table of (microbatch, chunk), the +c/-c order that its graph capture walks, and the numbers that follow from
// that order. The builders in schedules/ are held to it. Sources: get_pp_rank_microbatches, get_schedule_table,
// convert_schedule_table_to_order, get_overlap_moe_expert_parallel_comm_order, TECudaGraphHelper.
//
// Chunks in an order are 1-based: +c is a forward of chunk c-1, -c its backward; microbatches follow first in,
// first out.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "plan/table_writer.h"

namespace metroplex::plan {

struct MicrobatchShape {
  int num_stages = 1;
  int num_chunks = 1;
  bool interleaved = false;  // the schedule with virtual stages, also when each rank holds one chunk
  int num_microbatches = 1;
  int group_size = 0;  // 0: num_stages
  bool forward_only = false;
  bool overlap_moe = false;  // one forward more in the warm-up: a forward runs beside each backward
  int group() const { return group_size > 0 ? group_size : num_stages; }
};

struct WarmupCounts {
  int total = 0;  // forwards of a step on one rank: microbatches * chunks
  bool all_warmup = false;
  int warmup = 0;
  int remaining = 0;  // forwards that alternate with backwards
};
WarmupCounts count_warmup(const MicrobatchShape& shape, int rank);

// Forwards of one rank in order: groups of `group_size` microbatches, in a group chunk after chunk. The backwards
// take the same table with chunks counted from the end.
std::vector<Slot> schedule_table(int num_microbatches, int num_chunks, int group_size);

// What the interleaved schedule refuses ("" when fine): a group must hold between num_stages and num_microbatches
// microbatches, and a shorter last group at least num_stages.
std::string interleaved_refusal(const MicrobatchShape& shape);

std::vector<int> table_to_order(int num_warmup, int num_chunks, const std::vector<Slot>& table);

// Most (microbatch, chunk) forwards whose backward has not run yet, over the order.
int peak_in_flight(const std::vector<int>& order);

// Order over single layers for the schedule in which the layers of a forward alternate with those of the backward
// before it. Layers are numbered 1.. over all chunks; x.5 is the weight gradient of layer x, when it is split off.
struct LayerOrder {
  std::vector<double> order;
  std::vector<std::optional<std::pair<int, int>>> chunk_and_layer;  // of forwards only, 0-based
};
LayerOrder overlap_layer_order(const std::vector<int>& order, const std::vector<int>& num_layers_per_chunk,
                               bool split_weight_gradient);

// Static inputs of per-layer graphs: a backward hands the set of its forward back, the next forward takes the one
// that was handed back first. slot_of_forward[i] for i = (chunk * microbatches + microbatch) * layers + layer.
struct GraphBuffers {
  int num_sets = 0;
  std::vector<int> slot_of_forward;
};
GraphBuffers graph_buffers(const std::vector<int>& order, int num_chunks, int num_microbatches, int layers_per_chunk);

// Warm-up runs that a capture does after `warmup_steps` eager steps, so that about ten runs precede it.
int graph_warmup_runs(int num_stages, int num_microbatches, int warmup_steps);

}  // namespace metroplex::plan
