# Leaves out of llama-cpp-python's build what Python never loads: llama.cpp's library for its own
# programs, about half of all that is compiled. There is no option for it: the build sets it itself,
# but a variable that is set before it wins. Read by CMAKE_PROJECT_llama_cpp_INCLUDE.
set(LLAMA_BUILD_COMMON OFF)

function(leave_out_http)
    if(TARGET cpp-httplib)
        set_target_properties(cpp-httplib PROPERTIES EXCLUDE_FROM_ALL TRUE)
    endif()
endfunction()
cmake_language(DEFER CALL leave_out_http)  # at the end, when there is such a target
