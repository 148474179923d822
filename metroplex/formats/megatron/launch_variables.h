// Bash functions that a trial defines before a launch script, like those of launch_tools.h: variables of the shells
// that a command starts.
#pragma once

namespace metroplex::megatron {

inline constexpr const char* kLaunchVariables = R"BASH(
# Sets the variables of a shell that a command starts: those of the command (env NAME=VALUE, docker -e NAME=VALUE,
# srun --export=ALL,NAME=VALUE) and of its ranks. Variables that are not exported do not reach it.
metroplex_enter() {
  local mpx_words=("${metroplex_outer[@]:${#metroplex_before[@]}}") mpx_word mpx_option=
  IFS=$' \t\n'
  for mpx_word in $(builtin compgen -v); do
    [[ ${!mpx_word@a} == *x* || $mpx_word == @(mpx_*|metroplex_*|BASH*|FUNCNAME) || $metroplex_names == *" $mpx_word "* ]] ||
      unset -v "$mpx_word"
  done 2> /dev/null
  for mpx_word in "${mpx_words[@]}"; do
    case $mpx_word in
      --@(export|env|env-file|setenv)=*) mpx_option=${mpx_word%%=*} mpx_word=${mpx_word#*=} ;;
      -[exE][A-Z]*=*) mpx_option=-e mpx_word=${mpx_word:2} ;;
    esac
    case $mpx_option:$mpx_word in
      --export:ALL* | --export:*,ALL*) metroplex_export_list "$mpx_word" ;;
      --export:*) metroplex_keep_variables; metroplex_export_list "$mpx_word" ;;
      --env:* | -env:*,* | -v:*) metroplex_export_list "$mpx_word" ;;
      --env-file:*) [[ -f $mpx_word ]] && while IFS= read -r mpx_word; do metroplex_export "$mpx_word"; done < "$mpx_word" ;;
      -@(genv|env):*) mpx_option=$mpx_option=$mpx_word; continue ;;
      -@(genv|env)=*:*) metroplex_export "${mpx_option#*=}=$mpx_word" ;;
      *:@(-i|--ignore-environment) | *:@(docker|podman|ssh|pdsh|kubectl|clush|pssh|dsh)) metroplex_keep_variables ;;
      *:sudo) [[ " ${mpx_words[*]}" == *" "@(-E|--preserve-env)* ]] || metroplex_keep_variables ;;
      *:@(singularity|apptainer)) metroplex_container ;;
      --@(ignore-environment|preserve-env):* | --*=*:*) metroplex_export "$mpx_word" ;;
      -[lWoRN]:* | --*:*) ;;
      -u:*) [[ " ${mpx_words[*]}" == *"env "* ]] && unset -v "$mpx_word" ;;
      *:*) metroplex_export "$mpx_word" ;;
    esac 2> /dev/null
    mpx_option=$mpx_word
  done
  metroplex_set_ranks "${mpx_words[@]}"
}
metroplex_export() {  # NAME=VALUE, or another word
  [[ $1 =~ ^[A-Za-z_][A-Za-z0-9_]*= && $1 != @(metroplex_|mpx_|BASH)* ]] && export "$1"
}
# A value may hold a comma.
metroplex_export_list() {  # NAME=VALUE,NAME=VALUE
  local mpx_list=$1 mpx_last
  while [[ $mpx_list =~ ^(.*),[[:space:]]*([A-Za-z_][A-Za-z0-9_]*=.*)$ ]]; do
    mpx_list=${BASH_REMATCH[1]} mpx_last=${BASH_REMATCH[2]}
    metroplex_export "$mpx_last"
  done
  metroplex_export "$mpx_list"
}
# Removes the exported variables that a container or another machine does not get. "-e NAME" keeps one.
metroplex_keep_variables() {
  local mpx_name
  for mpx_name in $(builtin compgen -e); do
    [[ $mpx_name == @(HOME|PATH|PWD|USER|SHELL|LANG|LC_*|SLURM_*|mpx_*|metroplex_*) ||
      " ${mpx_words[*]//,/ } " == *[[:space:]=]"$mpx_name "* ]] || unset -v "$mpx_name"
  done
}
metroplex_container() {
  local mpx_name
  for mpx_name in $(builtin compgen -e); do
    [[ $mpx_name != @(SINGULARITY|APPTAINER)ENV_* ]] || metroplex_export "${mpx_name#*ENV_}=${!mpx_name}"
  done
}
# The first rank of a launcher runs the shell.
metroplex_set_ranks() {  # the words of launchers
  local mpx_word mpx_option= mpx_tool= mpx_count=
  for mpx_word; do
    case ${mpx_word##*/} in
      srun | ibrun | mpirun* | mpiexec* | orterun | prterun) mpx_tool=${mpx_word##*/} mpx_count= ;;
    esac
    [[ $mpx_option == @(-n|-np|--np|--ntasks) ]] && mpx_count=$mpx_word
    [[ $mpx_word == --@(np|ntasks)=* ]] && mpx_count=${mpx_word#*=}
    [[ $mpx_word == -n[0-9]* ]] && mpx_count=${mpx_word:2}
    mpx_option=$mpx_word
  done
  case $mpx_tool in
    srun | ibrun)
      metroplex_job
      export SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_NTASKS=${mpx_count:-${SLURM_NTASKS:-1}}
      export SLURM_NPROCS=$SLURM_NTASKS ;;
    ?*)
      export OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_LOCAL_RANK=0 PMI_RANK=0
      [[ -z $mpx_count ]] || export OMPI_COMM_WORLD_SIZE=$mpx_count PMI_SIZE=$mpx_count ;;
  esac
}
# The variables of every Slurm job. Trials have different ids: no flag may depend on one.
metroplex_job() {
  [[ -z ${SLURM_JOB_ID-} ]] || return 0
  metroplex_record "@not@run@SLURM_JOB_ID@@@" '#'
  export SLURM_JOB_ID=$((1000001 + metroplex_trial))
  export SLURM_JOBID=$SLURM_JOB_ID SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 SLURM_SUBMIT_DIR=$PWD
  local mpx_nodes
  [[ ${SLURM_NNODES:-1} == 1 ]] && mpx_nodes=node1 || mpx_nodes="node[1-$SLURM_NNODES]"
  export SLURM_JOB_NODELIST=$mpx_nodes SLURM_NODELIST=$mpx_nodes
}
)BASH";

}  // namespace metroplex::megatron
