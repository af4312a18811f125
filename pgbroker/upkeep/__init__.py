"""What somebody must do now and then for all: duties, each done in bounded pages. `runtime.duties` lists them."""
